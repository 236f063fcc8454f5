"""Is what was acknowledged readable, byte for byte, whatever breaks?

Random schedules of clients and faults, a checker over the history, and a shrinker that
cuts a failing schedule down to the few steps that matter.
"""
