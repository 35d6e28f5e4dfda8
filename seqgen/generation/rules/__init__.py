"""fairseq's and Hugging Face's rules of decoding: every difference between the two."""
