"""Each rule taken out of a copy of the package, and the test that turns red.

`make rules` tries them all. The working tree is only read.
"""
