"""What commands share: flags, output, and the cluster that they talk to."""
