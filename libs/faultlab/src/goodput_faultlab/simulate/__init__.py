"""A seeded generator of everything that a fabric, a job and their faults put on the bus.

spec = scenario("dead-link")                  # or a SimulationSpec of your own
simulation = Simulation(spec, seed=7)
for out in simulation.advance(spec.start + timedelta(seconds=30)): publish(out)
"""

from goodput_faultlab.simulate.clockwork import Outgoing
from goodput_faultlab.simulate.engine import Idle, Simulation
from goodput_faultlab.simulate.launcher import Reaction
from goodput_faultlab.simulate.scenarios import CATALOGUE, SCENARIOS, Scenario, scenario
from goodput_faultlab.simulate.spec import BenignSpec, FaultSpec, NoiseSpec, RecoverySpec, SimulationSpec, TransportSpec

__all__ = [
    "CATALOGUE",
    "SCENARIOS",
    "BenignSpec",
    "FaultSpec",
    "Idle",
    "NoiseSpec",
    "Outgoing",
    "Reaction",
    "RecoverySpec",
    "Scenario",
    "Simulation",
    "SimulationSpec",
    "TransportSpec",
    "scenario",
]
