"""What a disk may show after a loss of power, opened again by the real code."""
