"""The unit of security of a namespace."""
