"""The web console: what is stuck, since when, because of whom, and the ways out."""
