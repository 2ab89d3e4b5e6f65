"""deploy/kubernetes and deploy/compose.yaml against what the programs really take and answer: the
options, ports, names and probes they hold, Kubernetes' schemas, and linters. Kustomizations are
rendered by kubectl where it is installed; else their resources are read as they are.
PIGPEN_BUILD names the build folder."""
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import unittest
import urllib.request

import kubernetes_validate
import yaml

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "interop"))
import node_process  # noqa: E402

ROOT = HERE.parents[1]
BUILD = pathlib.Path(os.environ.get("PIGPEN_BUILD", ROOT / "build" / "release"))
PROGRAMS = {"attn-node": BUILD / "attn-node" / "attn-node",
            "gpu-worker": BUILD / "gpu-worker" / "gpu-worker",
            "pigpenctl": BUILD / "deploy" / "ctl" / "pigpenctl"}
KUBERNETES = ROOT / "deploy" / "kubernetes"
KUSTOMIZATIONS = ("base", "worker-job")
SCHEMA_VERSIONS = ("1.25", "1.30", kubernetes_validate.latest_version())
SHUTDOWN_SECONDS = 10  # at most, behind the drain
SPARE_SECONDS = 15
UNITS = {"Mi": 1 << 20, "Gi": 1 << 30, "m": 1 << 20, "g": 1 << 30}
TOOLS = pathlib.Path(sys.executable).parent
ENVIRONMENT = {k: v for k, v in os.environ.items() if not k.startswith("PIGPEN_")}


def render(name):
    """Every object of a kustomization."""
    folder = KUBERNETES / name
    if shutil.which("kubectl"):
        text = subprocess.run(["kubectl", "kustomize", str(folder)], check=True, timeout=60,
                              capture_output=True, text=True).stdout
        return list(yaml.safe_load_all(text))
    print("kubectl is not installed: resources read as they are")
    kustomization = yaml.safe_load((folder / "kustomization.yaml").read_text())
    return [thing for file in kustomization["resources"]
            for thing in yaml.safe_load_all((folder / file).read_text())]


def object_of(objects, kind):
    found = [thing for thing in objects if thing["kind"] == kind]
    assert len(found) == 1, f"{len(found)} objects of kind {kind}"
    return found[0]


def seconds(text):
    number, unit = re.fullmatch(r"(\d+)(s|m)", text).groups()
    return int(number) * (60 if unit == "m" else 1)


def size(text):
    number, unit = re.fullmatch(r"(\d+)(Mi|Gi|m|g)", text).groups()
    return int(number) * UNITS[unit]


def environment_of(container, pod_name):
    """A container's variables as the kubelet would set them."""
    values = {}
    for entry in container["env"]:
        if "value" in entry:
            value = re.sub(r"\$\((\w+)\)", lambda match: values[match.group(1)], entry["value"])
        elif "fieldRef" in entry["valueFrom"]:
            assert entry["valueFrom"]["fieldRef"]["fieldPath"] == "metadata.name"
            value = pod_name
        else:
            group, resource = entry["valueFrom"]["resourceFieldRef"]["resource"].split(".")
            value = str(size(container["resources"][group][resource]))
        values[entry["name"]] = value
    return values


def flags_of(environment):
    return [f"--{name[len('PIGPEN_'):].lower().replace('_', '-')}={value}"
            for name, value in environment.items() if name.startswith("PIGPEN_")]


def check_config(arguments, environment):
    """Starts the container's program far enough to judge every option."""
    done = subprocess.run([str(PROGRAMS[arguments[0]]), *arguments[1:], "--check-config"],
                          capture_output=True, text=True, timeout=60, env={**ENVIRONMENT, **environment})
    assert done.returncode == 0, (arguments, environment, done.stderr)


def certificates(test):
    """A folder with what deploy/certificates makes."""
    folder = tempfile.TemporaryDirectory()
    test.addCleanup(folder.cleanup)
    subprocess.run([str(ROOT / "deploy" / "certificates"), folder.name], check=True, timeout=60)
    return folder.name


def option(arguments, name):
    found = [a.split("=", 1)[1] for a in arguments if a.startswith(f"--{name}=")]
    assert len(found) == 1, (name, arguments)
    return found[0].strip()


def names_host(folder, name):
    done = subprocess.run(["openssl", "x509", "-in", f"{folder}/attn-node.pem", "-noout",
                           "-checkhost", name], check=True, timeout=60, capture_output=True, text=True)
    return "does match" in done.stdout


class KubernetesTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.objects = {name: render(name) for name in KUSTOMIZATIONS}
        cls.nodes = object_of(cls.objects["base"], "StatefulSet")
        cls.service = object_of(cls.objects["base"], "Service")
        cls.pod = cls.nodes["spec"]["template"]
        cls.node = cls.pod["spec"]["containers"][0]
        cls.environment = environment_of(cls.node, "attn-node-0")
        cls.job = object_of(cls.objects["worker-job"], "Job")
        cls.worker = cls.job["spec"]["template"]["spec"]["containers"][0]

    def test_every_object_holds_to_the_schemas(self):
        for objects in self.objects.values():
            for thing in objects:
                for version in SCHEMA_VERSIONS:
                    kubernetes_validate.validate(thing, version, strict=True)

    def test_every_selector_takes_the_pods_it_is_for_and_no_other(self):
        own = self.pod["metadata"]["labels"]
        worker = self.job["spec"]["template"]["metadata"]["labels"]
        budget = object_of(self.objects["base"], "PodDisruptionBudget")
        policy = object_of(self.objects["base"], "NetworkPolicy")
        spread = self.pod["spec"]["topologySpreadConstraints"][0]["labelSelector"]["matchLabels"]
        for selector in (self.nodes["spec"]["selector"]["matchLabels"],
                         self.service["spec"]["selector"], spread,
                         budget["spec"]["selector"]["matchLabels"],
                         policy["spec"]["podSelector"]["matchLabels"]):
            self.assertLessEqual(selector.items(), own.items())
            self.assertFalse(selector.items() <= worker.items())
        clients = policy["spec"]["ingress"][0]["from"][0]["podSelector"]["matchLabels"]
        self.assertLessEqual(clients.items(), worker.items())
        self.assertEqual(self.nodes["spec"]["serviceName"], self.service["metadata"]["name"])
        self.assertEqual(self.service["spec"]["clusterIP"], "None")
        self.assertTrue(self.service["spec"]["publishNotReadyAddresses"])
        self.assertEqual(budget["spec"]["maxUnavailable"], 1)

    def test_ports_are_those_the_node_listens_on(self):
        ports = {port["name"]: port["containerPort"] for port in self.node["ports"]}
        self.assertEqual(self.environment["PIGPEN_LISTEN"], f"0.0.0.0:{ports['grpc']}")
        self.assertEqual(self.environment["PIGPEN_ADMIN_LISTEN"], f"0.0.0.0:{ports['admin']}")
        for port in self.service["spec"]["ports"]:
            self.assertEqual(port["port"], ports[port["targetPort"]])
        policy = object_of(self.objects["base"], "NetworkPolicy")
        opened = [rule["ports"][0]["port"] for rule in policy["spec"]["ingress"]]
        self.assertEqual(opened, ["grpc", "admin"])

    def test_options_are_right_and_the_memory_limit_is_four_fifths_of_the_containers(self):
        check_config(self.node["args"], self.environment)
        printed = subprocess.run([str(PROGRAMS["attn-node"]), "--print-config",
                                  *flags_of(self.environment)], capture_output=True, text=True,
                                 timeout=60, check=True, env=ENVIRONMENT).stdout
        limit = int(re.search(r"(?m)^memory-limit = .* (\d+) bytes$", printed).group(1))
        self.assertEqual(limit, size(self.node["resources"]["limits"]["memory"]) * 8 // 10)
        self.assertEqual(self.node["resources"]["requests"], self.node["resources"]["limits"])
        check_config(self.worker["args"], {})

    def test_probes_are_answered_by_a_node_with_these_options(self):
        folder = certificates(self)
        secret = {"tls.crt": "attn-node.pem", "tls.key": "attn-node.key", "ca.crt": "ca.pem"}
        taken = {name: f"{folder}/{secret[value[len('/tls/'):]]}" if "_TLS_" in name else value
                 for name, value in self.environment.items()
                 if name not in ("PIGPEN_LISTEN", "PIGPEN_ADMIN_LISTEN", "PIGPEN_MEMORY_LIMIT")}
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with node_process.Node(PROGRAMS["attn-node"], "--memory-limit=512MiB",
                               *flags_of(taken)) as node:
            for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
                asked = self.node[probe]["httpGet"]
                self.assertEqual(asked["port"], "admin")
                url = f"http://127.0.0.1:{node.admin_port}{asked['path']}"
                with opener.open(url, timeout=30) as answer:
                    self.assertEqual(answer.status, 200, probe)
            self.assertEqual(node.stop(), 0)
        self.assertEqual(self.node["livenessProbe"]["httpGet"]["path"], "/livez")
        self.assertEqual(self.node["readinessProbe"]["httpGet"]["path"], "/readyz")

    def test_grace_period_outlasts_drain_and_shutdown(self):
        drain = seconds(self.environment["PIGPEN_DRAIN_TIMEOUT"])
        self.assertGreaterEqual(self.pod["spec"]["terminationGracePeriodSeconds"],
                                drain + SHUTDOWN_SECONDS + SPARE_SECONDS)

    def test_worker_follows_the_addresses_behind_the_services_name(self):
        service = self.service["metadata"]["name"]
        port = self.service["spec"]["ports"][0]["port"]
        self.assertEqual(option(self.worker["args"], "nodes"), f"dns:{service}:{port}")
        self.assertEqual(option(self.worker["args"], "nodes-min"),
                         str(self.nodes["spec"]["replicas"]))

    def test_nodes_and_worker_ask_each_other_for_certificates_from_their_secrets(self):
        self.assertNotIn("PIGPEN_INSECURE", self.environment)
        for spec, secret in ((self.pod["spec"], "attn-node-tls"),
                             (self.job["spec"]["template"]["spec"], "gpu-worker-tls")):
            volume = [v for v in spec["volumes"] if v["name"] == "tls"][0]["secret"]
            self.assertEqual(volume["secretName"], secret)
            self.assertEqual(volume["defaultMode"], 0o440)
            self.assertEqual(spec["securityContext"]["fsGroup"], 65532)
            mounts = {m["name"]: m["mountPath"] for m in spec["containers"][0]["volumeMounts"]}
            self.assertEqual(mounts["tls"], "/tls")
        files = {"cert": "/tls/tls.crt", "key": "/tls/tls.key", "ca": "/tls/ca.crt"}
        for name, path in files.items():
            self.assertEqual(self.environment[f"PIGPEN_TLS_{name.upper()}_FILE"], path)
            self.assertEqual(option(self.worker["args"], f"tls-{name}-file"), path)
        self.assertTrue(names_host(certificates(self), option(self.worker["args"], "tls-server-name")))

    def test_pods_hold_to_the_restricted_standard(self):
        for spec in (self.pod["spec"], self.job["spec"]["template"]["spec"]):
            self.assertTrue(spec["securityContext"]["runAsNonRoot"])
            self.assertEqual(spec["securityContext"]["runAsUser"], 65532)
            self.assertEqual(spec["securityContext"]["seccompProfile"]["type"], "RuntimeDefault")
            self.assertFalse(spec["automountServiceAccountToken"])
            self.assertFalse(spec["enableServiceLinks"])
            for container in spec["containers"]:
                own = container["securityContext"]
                self.assertFalse(own["allowPrivilegeEscalation"])
                self.assertTrue(own["readOnlyRootFilesystem"])
                self.assertEqual(own["capabilities"]["drop"], ["ALL"])
            for volume in spec.get("volumes", ()):
                self.assertNotIn("hostPath", volume)


class ComposeTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        text = (ROOT / "deploy" / "compose.yaml").read_text()
        text = re.sub(r"\$\{\w+:-([^}]*)\}", r"\1", text)  # the defaults
        cls.services = yaml.safe_load(text)["services"]
        cls.node, cls.worker = cls.services["node"], cls.services["worker"]

    def test_three_nodes_have_right_options_a_health_check_and_time_to_drain(self):
        node = self.node
        self.assertEqual(node["deploy"], {"mode": "replicated", "replicas": 3})
        check_config(node["command"], node["environment"])
        self.assertEqual(node["depends_on"],
                         {"certificates": {"condition": "service_completed_successfully"}})
        self.assertEqual(node["healthcheck"]["test"], ["CMD", "pigpenctl", "health"])
        self.assertGreaterEqual(
            seconds(node["stop_grace_period"]),
            seconds(node["environment"]["PIGPEN_DRAIN_TIMEOUT"]) + SHUTDOWN_SECONDS + SPARE_SECONDS)
        self.assertGreaterEqual(size(node["mem_limit"]), 512 << 20)

    def test_services_publish_no_port_and_are_confined(self):
        for name, service in self.services.items():
            self.assertNotIn("ports", service, name)
            self.assertEqual(service.get("network_mode", "none"), "none", name)
            self.assertTrue(service["read_only"], name)
            self.assertEqual(service["cap_drop"], ["ALL"], name)

    def test_nodes_and_worker_ask_each_other_for_certificates_of_the_first_service(self):
        folder = certificates(self)
        maker = self.services["certificates"]
        self.assertEqual(maker["command"], ["pigpen-certificates", "--keep", "/tls"])
        for service in (self.node, self.worker):
            self.assertIn("tls:/tls:ro", service["volumes"])
            self.assertNotIn("PIGPEN_INSECURE", service["environment"])
            for name in ("CERT", "KEY", "CA"):
                path = service["environment"][f"PIGPEN_TLS_{name}_FILE"]
                self.assertTrue(pathlib.Path(path.replace("/tls", folder)).is_file(), path)
        self.assertTrue(names_host(folder, self.worker["environment"]["PIGPEN_TLS_SERVER_NAME"]))
        self.assertFalse(names_host(folder, "another"))

    def test_worker_waits_for_all_nodes_and_follows_the_addresses_behind_their_name(self):
        worker = self.worker
        check_config(worker["command"], worker.get("environment", {}))
        self.assertEqual(worker["depends_on"], {"node": {"condition": "service_healthy"}})
        port = self.node["environment"]["PIGPEN_LISTEN"].rsplit(":", 1)[1]
        self.assertEqual(option(worker["command"], "nodes"), f"dns:node:{port}")
        self.assertEqual(option(worker["command"], "nodes-min"),
                         str(self.node["deploy"]["replicas"]))
        mounted = worker["volumes"][-1].split(":")[1]
        self.assertEqual(option(worker["command"], "model"), mounted)


class FilesTest(unittest.TestCase):
    def lint(self, *command):
        done = subprocess.run([str(TOOLS / command[0]), *command[1:]], cwd=ROOT, timeout=60,
                              capture_output=True, text=True)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)

    def test_dockerfile_is_clean(self):
        self.lint("hadolint", "deploy/Dockerfile")

    def test_yaml_is_clean(self):
        self.lint("yamllint", "--strict", "-d",
                  "{extends: default, rules: {line-length: {max: 100, allow-non-breakable-words: true},"
                  " document-start: disable}}", "deploy")

    def test_build_context_names_only_what_is_there(self):
        lines = (ROOT / ".containerignore").read_text().splitlines()
        kept = [line[1:] for line in lines if line.startswith("!")]
        self.assertIn("*", lines)
        self.assertIn("proto", kept)
        for path in kept:
            self.assertTrue((ROOT / path).exists(), path)
        self.assertEqual((ROOT / ".dockerignore").read_text().splitlines(), lines)

    def test_scripts_tell_their_usage_and_refuse_what_they_do_not_know(self):
        for name in ("image", "install-build-deps", "certificates"):
            script = str(ROOT / "deploy" / name)
            shown = subprocess.run([script, "--help"], capture_output=True, text=True, timeout=60)
            self.assertEqual(shown.returncode, 0)
            self.assertIn(f"usage: deploy/{name}", shown.stdout)
            refused = subprocess.run([script, "--nonsense"], capture_output=True, text=True, timeout=60)
            self.assertEqual(refused.returncode, 2)
            self.assertIn("--nonsense", refused.stderr)


if __name__ == "__main__":
    unittest.main(verbosity=2)
