"""What was quantized, in formats of others."""
