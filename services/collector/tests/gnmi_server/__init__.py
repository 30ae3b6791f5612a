"""A switch that speaks gNMI, for tests: a real gRPC server with the protocol's own classes, over a tree of the tests'."""

from gnmi_server.certificates import Certificates, make_certificates
from gnmi_server.models import OpenConfigSwitch, SonicSwitch
from gnmi_server.server import Behaviour, GnmiServer

__all__ = ["Behaviour", "Certificates", "GnmiServer", "OpenConfigSwitch", "SonicSwitch", "make_certificates"]
