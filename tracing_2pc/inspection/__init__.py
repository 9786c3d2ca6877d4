"""What is, and why: reads, and changes nothing."""
