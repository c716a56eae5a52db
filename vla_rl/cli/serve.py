"""Serve a policy over openpi's websocket protocol, to our clients (openpi://HOST:PORT) and to openpi's.

Example: vla-rl serve runs/demo --port 8000
"""

import argparse


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("policy", metavar="RUN_OR_POLICY", help="a run folder, a policy folder or a deployment")
    parser.add_argument("--version", type=int, help="policy version of the run (default: the newest)")
    parser.add_argument("--host", default="127.0.0.1", help="address; one of other computers needs VLA_RL_TOKEN")
    parser.add_argument("--port", type=int, default=8000, help="port; 0 takes a free one")
    parser.add_argument("--clients", type=int, default=8, help="number of clients at a time")
    parser.add_argument("--device", default="cpu", help="where a policy in torch runs")
    parser.add_argument("--interface", metavar="NAME_OR_YAML", help="keys of the clients' messages, such as libero")


def run(arguments: argparse.Namespace) -> int:
    from vla_rl.acting.serve import serve

    serve(
        arguments.policy,
        arguments.host,
        arguments.port,
        version=arguments.version,
        clients=arguments.clients,
        device=arguments.device,
        interface=arguments.interface,
    )
    return 0
