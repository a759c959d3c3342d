"""Code that several API keys share."""
