"""Fault proxies: an embedded server that speaks Toxiproxy's API, and its client.

`server.py` and what it needs (`loop`, `relay`, `stages`, `toxics`, `http`,
`fault_proxy`) run in a process of their own, `python -m chaos.proxy`; `client.py` and
`process.py` run in the harness. Nothing is imported here: the server starts faster.
"""
