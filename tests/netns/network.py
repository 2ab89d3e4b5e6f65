"""A network of its own for a test: a bridge in one namespace, where the worker runs, and a namespace a
host, each on a cable that can be cut, slow or lossy. All of it lies in namespaces named by this
process: the machine's own network does not see it, and it goes with them. As root only."""
import atexit
import functools
import itertools
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys

RELAY = pathlib.Path(__file__).with_name("relay.py")
ETC = pathlib.Path("/etc/netns")
BRIDGE = "bridge"
WORKER_ADDRESS = "10.77.0.1"
_counter = itertools.count()
_networks = []


def ip(*arguments, check=True):
    done = subprocess.run(["ip", *arguments], capture_output=True, text=True, timeout=60,
                          stdin=subprocess.DEVNULL)
    if check and done.returncode != 0:
        raise OSError(f"ip {' '.join(arguments)}: {done.stderr.strip()}")
    return done


def inside(namespace):
    """What goes before a command that is to run there, and to die with this process."""
    return ("ip", "netns", "exec", namespace, "setpriv", "--pdeathsig", "KILL")


def missing():
    """Why no network can be made here, or None. Removes what a killed process left behind."""
    if os.geteuid() != 0:
        return "it needs root"
    for program in ("ip", "setpriv"):
        if shutil.which(program) is None:
            return f"the program {program} is not installed"
    for line in ip("netns", "list", check=False).stdout.splitlines():
        found = re.match(r"pigpen-(\d+)-", line)
        if found and not pathlib.Path(f"/proc/{found.group(1)}").exists():
            remove(line.split()[0])
    name = f"pigpen-{os.getpid()}-try"
    tried = ip("netns", "add", name, check=False)
    if tried.returncode != 0:
        return f"no namespace can be made: {tried.stderr.strip()}"
    made = ip("-n", name, "link", "add", BRIDGE, "type", "bridge", check=False)
    if made.returncode == 0:
        made = ip("-n", name, "link", "add", "near", "type", "veth", "peer", "name", "far", check=False)
    remove(name)
    return None if made.returncode == 0 else f"no bridge or veth: {made.stderr.strip()}"


def remove(namespace):
    ip("netns", "del", namespace, check=False)
    shutil.rmtree(ETC / namespace, ignore_errors=True)


@functools.cache
def shaping():
    """How cables are made slow and lossy here: "netem", "relay", or None and why not."""
    name = f"pigpen-{os.getpid()}-try"
    ip("netns", "add", name)
    try:
        ip("-n", name, "link", "set", "lo", "up")
        tried = subprocess.run(["tc", "-n", name, "qdisc", "add", "dev", "lo", "root", "netem",
                                "delay", "1ms"], capture_output=True, text=True, timeout=60)
        if tried.returncode == 0:
            return "netem", None
        why = f"this kernel has no netem ({tried.stderr.strip()})"
    except FileNotFoundError:
        why = "the program tc is not installed"
    finally:
        remove(name)
    if os.path.exists("/dev/net/tun"):
        return "relay", why
    return None, f"{why}, and there is no /dev/net/tun for a relay"


class Network:
    def __init__(self):
        self.name = f"pigpen-{os.getpid()}-{next(_counter)}"
        self.hub = f"{self.name}-hub"
        self.hosts, self.relays = [], []
        _networks.append(self)
        (ETC / self.hub).mkdir(parents=True)  # its own /etc/hosts, for names that change
        self.names({})
        ip("netns", "add", self.hub)
        ip("-n", self.hub, "link", "set", "lo", "up")
        # An address of its own: that of a bridge without one changes with its ports.
        ip("-n", self.hub, "link", "add", BRIDGE, "address", "02:00:00:77:00:01", "type", "bridge")
        ip("-n", self.hub, "address", "add", f"{WORKER_ADDRESS}/24", "dev", BRIDGE)
        ip("-n", self.hub, "link", "set", BRIDGE, "up")

    def host(self, delay_ms=0, loss=0.0):
        return Host(self, delay_ms, loss)

    def names(self, addresses):
        """What names mean to the worker from now on: {name: addresses}. Written in place: running
        programs see this very file as /etc/hosts."""
        lines = [f"{address} {name}\n" for name, all_ in addresses.items() for address in all_]
        (ETC / self.hub / "hosts").write_text("".join(lines) + "127.0.0.1 localhost\n")

    def close(self):
        if self in _networks:
            _networks.remove(self)
        for relay in self.relays:
            relay.stdin.close()
            relay.wait(60)
            relay.stdout.close()
        for host in self.hosts:
            remove(host.namespace)
        remove(self.hub)


class Host:
    """A namespace with one device, eth0, whose cable ends at a port of the bridge."""

    def __init__(self, network, delay_ms, loss):
        number = len(network.hosts)
        self.network = network
        self.namespace = f"{network.name}-host{number}"
        self.address = f"10.77.0.{10 + number}"
        self.port = f"port{number}"
        network.hosts.append(self)
        ip("netns", "add", self.namespace)
        ip("-n", self.namespace, "link", "set", "lo", "up")
        how = shaping()[0] if delay_ms or loss else None
        if how == "relay":
            self.relay(delay_ms, loss, number)
        else:
            ip("-n", network.hub, "link", "add", self.port, "type", "veth", "peer", "name", "eth0",
               "netns", self.namespace)
        if how == "netem":
            self.netem(network.hub, self.port, 0, loss)
            self.netem(self.namespace, "eth0", delay_ms, loss)
        ip("-n", self.namespace, "address", "add", f"{self.address}/24", "dev", "eth0")
        ip("-n", self.namespace, "link", "set", "eth0", "up")
        self.heal()
        ip("-n", network.hub, "link", "set", self.port, "up")

    def relay(self, delay_ms, loss, seed):
        relay = subprocess.Popen(
            [sys.executable, str(RELAY), self.network.hub, self.port, self.namespace, "eth0",
             str(delay_ms), str(loss), str(seed)], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self.network.relays.append(relay)
        if relay.stdout.readline() != b"ready\n":
            raise OSError("the relay did not start")

    def netem(self, namespace, device, delay_ms, loss):
        subprocess.run(["tc", "-n", namespace, "qdisc", "add", "dev", device, "root", "netem",
                        "limit", "100000", "delay", f"{delay_ms}ms", "loss", f"{loss * 100}%"],
                       check=True, timeout=60)

    def cut(self):
        """Every frame is dropped from now on, both ways, and nobody is told."""
        ip("-n", self.network.hub, "link", "set", self.port, "nomaster")

    def heal(self):
        ip("-n", self.network.hub, "link", "set", self.port, "master", BRIDGE)

    def inside(self):
        return inside(self.namespace)


@atexit.register
def close_all():
    for network in list(_networks):
        network.close()


def end_by_signal(number, _):
    close_all()
    os._exit(128 + number)  # what runs inside dies with this process


for _number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
    signal.signal(_number, end_by_signal)
