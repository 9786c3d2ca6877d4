"""The vocabulary of all other modules. Imports the standard library only."""
