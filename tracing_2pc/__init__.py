"""Write each micro-batch to several services together or not at all, traced."""
