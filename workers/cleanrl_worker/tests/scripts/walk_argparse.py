import argparse
import json
import os
import sys
import time

from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.summary.writer.event_file_writer import EventFileWriter


def strtobool(text):
    return {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}[text.lower()]


def parse_args():
    # fmt: off
    parser = argparse.ArgumentParser()
    parser.add_argument("--exp-name", type=str, default=os.path.basename(__file__).rstrip(".py"),
        help="the name of this experiment")
    parser.add_argument("--seed", type=int, default=1,
        help="seed of the experiment")
    parser.add_argument("--gym-id", type=str, default="Walk-v0",
        help="what is walked")
    parser.add_argument("--total-timesteps", type=int, default=2000,
        help="stop after this many steps")
    parser.add_argument("--capture_video", type=lambda x: bool(strtobool(x)), default=False, nargs="?", const=True,
        help="written with an underscore")
    parser.add_argument("--quick", type=lambda x: bool(strtobool(x)), default=True, nargs="?", const=True)
    parser.add_argument("--fail-at", type=int, default=0, help="fall into a ditch at this step")
    parser.add_argument("--exit-code", type=int, default=0)
    parser.add_argument("--deaf", action="store_true", help="ignore SIGTERM")
    parser.add_argument("--stand-still", action="store_true", help="take no step, for ever")
    return parser.parse_args()
    # fmt: on


if __name__ == "__main__":
    args = parse_args()
    if args.deaf:
        import signal

        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    with open("seen.json", "w") as file:
        json.dump({"argv": sys.argv[1:], "environ": dict(os.environ), "path": sys.path[:2], "args": vars(args)}, file)
    folder = f"runs/{args.gym_id}__{args.exp_name}__{args.seed}__{int(time.time())}"
    writer = EventFileWriter(folder, flush_secs=1)
    step = 0
    while args.stand_still or step < args.total_timesteps:
        time.sleep(0.0 if args.quick else 0.005)
        if args.stand_still:
            continue
        step += 10
        values = {"charts/episodic_return": step / 100, "charts/SPS": 1000.0}
        summary = Summary(value=[Summary.Value(tag=tag, simple_value=value) for tag, value in values.items()])
        writer.add_event(Event(wall_time=time.time(), step=step, summary=summary))
        if args.fail_at and step >= args.fail_at:
            writer.flush()
            raise ValueError("it fell into a ditch")
    writer.close()
    sys.exit(args.exit_code)
