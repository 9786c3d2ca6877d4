"""What a job writes to."""
