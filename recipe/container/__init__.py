"""The image of each recipe on the pinned digest, how every node starts it and joins Ray, and two manifests."""
