"""What scripted experts share, and an expert with errors."""
