"""Reading weights, architectures as data, the ledger of their symmetries, and twins."""
