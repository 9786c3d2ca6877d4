"""What a service embeds to become a participant."""
