"""Stands in for Mooncake's package where the reference system is to be used."""
