"""A host's /proc and /sys as trees of files, for the tests of the host's sources."""

from __future__ import annotations

from pathlib import Path

PRESSURE = (
    "some avg10={some} avg60=0.00 avg300=0.00 total={some_us}\nfull avg10={full} avg60=0.00 avg300=0.00 total={full_us}\n"
)
VMSTAT = "nr_free_pages 1\npswpin {swap_in}\npswpout 0\npgmajfault 7\noom_kill {oom}\nzone_reclaim 0\n"
DISK = " 259       0 {name} {done} 0 80 {ms} 0 0 0 0 {in_flight} {busy_ms} {busy_ms} 0 0 0 0 0 0\n"
MOUNT = """device {server}:/export mounted on {path} with fstype nfs4 statvers=1.1
\topts:\trw,vers=4.2,rsize=1048576,hard,proto=tcp,timeo=600,retrans=2
\tage:\t5000
\tevents:\t1 2 3 4
\tbytes:\t1 2 3 4 5 6 7 8
\tRPC iostats version: 1.1  p/v: 100003/4 (nfs)
\txprt:\ttcp 875 1 {connects} 0 0 {sent} {received} {unasked} {sent} {backlog} 2 30 40
\tper-op statistics
\t        NULL: 1 1 0 44 24 0 0 0 0
\t        READ: {ops} {transmitted} {timeouts} 100 200 3 {rtt_ms} 900 0

"""


class HostTree:
    def __init__(self, root: Path) -> None:
        self.proc, self.sys = root / "proc", root / "sys"
        self.pressure()
        self.put(self.proc / "meminfo", "MemTotal:       1000000 kB\nMemFree: 1 kB\nMemAvailable:    800000 kB\n")
        self.vmstat()
        self.disks()

    def put(self, path: Path, text: str) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def pressure(self, resource: str | None = None, *, some: float = 0, full: float = 0, some_us: int = 0) -> None:
        for name in (resource,) if resource else ("cpu", "memory", "io"):
            text = PRESSURE.format(some=some, full=full, some_us=some_us, full_us=0)
            self.put(self.proc / "pressure" / name, text)

    def available(self, kib: int) -> None:
        self.put(self.proc / "meminfo", f"MemTotal: 1000000 kB\nMemAvailable: {kib} kB\n")

    def vmstat(self, *, swap_in: int = 0, oom: int = 0) -> None:
        self.put(self.proc / "vmstat", VMSTAT.format(swap_in=swap_in, oom=oom))

    def disks(self, *, done: int = 100, ms: int = 50, in_flight: int = 0, busy_ms: int = 10) -> None:
        (self.sys / "block" / "nvme0n1").mkdir(parents=True, exist_ok=True)
        names = ("nvme0n1", "nvme0n1p1", "loop0")
        line = "".join(DISK.format(name=name, done=done, ms=ms, in_flight=in_flight, busy_ms=busy_ms) for name in names)
        self.put(self.proc / "diskstats", line)

    def mount(self, *, sent: int, received: int, ops: int | None = None, connects: int = 1, **more: int) -> None:
        ops = received if ops is None else ops
        given = {"backlog": 0, "timeouts": 0, "rtt_ms": 0, "retransmitted": 0, "unasked": 0} | more
        text = "device proc mounted on /proc with fstype proc\n" + MOUNT.format(
            server="nas",
            path="/data",
            sent=sent,
            received=received,
            ops=ops,
            transmitted=ops + given["retransmitted"],
            connects=connects,
            **{name: given[name] for name in ("backlog", "timeouts", "rtt_ms", "unasked")},
        )
        self.put(self.proc / "self" / "mountstats", text)

    def pci(self, address: str, pci_class: str, vendor: str, *, under: str = "", aer: bool = True, **links: str) -> Path:
        """A device, and its place below a bridge; `links` makes folders such as net=eth0."""
        real = self.sys / "devices" / "pci0000:00" / under / address
        for name, text in (("class", pci_class), ("vendor", vendor)):
            self.put(real / name, text + "\n")
        for folder, name in links.items():
            (real / folder / name).mkdir(parents=True)
        if aer:
            self.aer(real)
        listed = self.sys / "bus" / "pci" / "devices"
        listed.mkdir(parents=True, exist_ok=True)
        (listed / address).symlink_to(real)
        return real

    def aer(self, device: Path, *, bad_tlp: int = 0, fatal: int = 0) -> None:
        self.put(device / "aer_dev_correctable", f"RxErr 0\nBadTLP {bad_tlp}\nRollover 0\nTOTAL_ERR_COR {bad_tlp}\n")
        self.put(device / "aer_dev_nonfatal", "Undefined 0\nDLP 0\nTOTAL_ERR_NONFATAL 0\n")
        self.put(device / "aer_dev_fatal", f"Undefined 0\nDLP {fatal}\nTOTAL_ERR_FATAL {fatal}\n")

    def cpu(self, number: int, package: int, core: int, *, throttled: int = 0) -> None:
        cpu = self.sys / "devices" / "system" / "cpu" / f"cpu{number}"
        self.put(cpu / "topology" / "physical_package_id", f"{package}\n")
        self.put(cpu / "topology" / "core_id", f"{core}\n")
        self.put(cpu / "thermal_throttle" / "core_throttle_count", f"{throttled}\n")
        self.put(cpu / "thermal_throttle" / "package_throttle_count", f"{throttled}\n")

    def offline(self, number: int) -> None:
        for file in (self.sys / "devices" / "system" / "cpu" / f"cpu{number}" / "thermal_throttle").iterdir():
            file.unlink()
        (self.sys / "devices" / "system" / "cpu" / f"cpu{number}" / "thermal_throttle").rmdir()

    def edac(self, *, corrected: int = 0, uncorrected: int = 0) -> None:
        mc = self.sys / "devices" / "system" / "edac" / "mc" / "mc0"
        for name, number in (("ce", corrected), ("ue", uncorrected)):
            self.put(mc / f"{name}_count", f"{number}\n")
            self.put(mc / "dimm3" / f"dimm_{name}_count", f"{number}\n")
        self.put(mc / "dimm3" / "dimm_label", "CPU_SrcID#0_Chan#1_DIMM#0\n")
