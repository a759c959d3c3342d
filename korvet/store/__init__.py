"""Everything that knows Redis: key names, the function contract, the multiplexed client, catalog, log and groups."""
