"""How the recovery service touches the world: Postgres, HTTP, the agents, the actuators."""
