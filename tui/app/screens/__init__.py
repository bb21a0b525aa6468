"""One file a screen: what it shows, where its data come from, and what its keys do."""
