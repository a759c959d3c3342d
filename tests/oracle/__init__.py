"""Apache Kafka and korvet side by side. As a package it ends both when its last test has run."""
