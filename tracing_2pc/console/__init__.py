"""The web console: stuck transactions, their age, their cause, and the ways out."""
