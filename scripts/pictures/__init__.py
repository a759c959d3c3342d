"""The pictures of the documentation: `python -m scripts.pictures` writes them into docs/images.

A test compares the files with the drawings.
"""
