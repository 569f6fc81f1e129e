"""nft: to be described."""
