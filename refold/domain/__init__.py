"""What a session is: its events, what it accepts, and the chain that binds them."""
