"""A virtual cluster in virtual time under the same controller, detectors and save policy that run the real one.

Nothing is re-implemented that decides: ``decide.controller``, ``decide.saving``, ``decide.restore_points`` and
``detect.progress`` are called with the facts that production would feed them. Randomness is a seed, time an argument.
"""
