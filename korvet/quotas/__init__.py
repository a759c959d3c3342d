"""Quotas (KIP-13, KIP-124, KIP-546, KIP-599, KIP-612), which hold for all front-ends of a namespace together."""
