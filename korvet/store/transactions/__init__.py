"""The transaction coordinator: typed calls of its functions, and the work that follows its decisions."""
