"""Drills of the gateway: stand-ins for engines that break when told to, and seeded rounds of streams through them."""
