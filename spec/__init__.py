"""The protocol as a program that is explored: `make model`."""
