"""Names of the environment variables that processes of MOSAIC hand to each other.

The only place where these names are spelled. None is ever renamed: workers of other people read them.
"""

from __future__ import annotations

from typing import Final

# -- where things lie
MOSAIC_HOME: Final = "MOSAIC_HOME"
MOSAIC_CONFIG_HOME: Final = "MOSAIC_CONFIG_HOME"  # user settings and the secret file; never under the home
MOSAIC_CONNECT: Final = "MOSAIC_CONNECT"  # for clients: HOST:PORT of a daemon, or the name of a profile
MOSAIC_CACHE_HOME: Final = "MOSAIC_CACHE_HOME"  # copies of files that lie on another machine; may be removed any time
MOSAIC_RUN_ID: Final = "MOSAIC_RUN_ID"
MOSAIC_RUN_DIR: Final = "MOSAIC_RUN_DIR"
MOSAIC_CONFIG_FILE: Final = "MOSAIC_CONFIG_FILE"
MOSAIC_CHECKPOINT_DIR: Final = "MOSAIC_CHECKPOINT_DIR"
MOSAIC_CUSTOM_SCRIPTS_DIR: Final = "MOSAIC_CUSTOM_SCRIPTS_DIR"  # folders scripts may come from, joined as in PATH
MOSAIC_FRAMES_DIR: Final = "MOSAIC_FRAMES_DIR"  # where a worker on a node publishes its frames
MOSAIC_SCRIPT_RUN: Final = "MOSAIC_SCRIPT_RUN"  # the custom_script run whose script started this process

# -- daemon to worker
MOSAIC_RUN_TOKEN: Final = "MOSAIC_RUN_TOKEN"  # secret: proves to the daemon whose worker this is
MOSAIC_RUN_MARK: Final = "MOSAIC_RUN_MARK"  # not secret: finds every process of a run attempt
MOSAIC_RUN_ATTEMPT: Final = "MOSAIC_RUN_ATTEMPT"
MOSAIC_NODE_INSTANCE: Final = "MOSAIC_NODE_INSTANCE"  # what the node process called itself; its worker does the same
MOSAIC_GRPC_TARGET: Final = "MOSAIC_GRPC_TARGET"
MOSAIC_GRACE_S: Final = "MOSAIC_GRACE_S"  # how long after SIGTERM until SIGKILL

# -- client to daemon
MOSAIC_DAEMON_TOKEN: Final = "MOSAIC_DAEMON_TOKEN"  # secret: for a client on another machine

# -- CleanRL worker to its training process
CLEANRL_RUN_DIR: Final = "CLEANRL_RUN_DIR"
CLEANRL_RUN_ID: Final = "CLEANRL_RUN_ID"
CLEANRL_AGENT_ID: Final = "CLEANRL_AGENT_ID"
CLEANRL_WORKER_ID: Final = "CLEANRL_WORKER_ID"
CLEANRL_NUM_ENVS: Final = "CLEANRL_NUM_ENVS"
CLEANRL_SEED: Final = "CLEANRL_SEED"
CLEANRL_TENSORBOARD_DIR: Final = "CLEANRL_TENSORBOARD_DIR"
CLEANRL_CONTROL_FD: Final = "CLEANRL_CONTROL_FD"
CLEANRL_PROGRESS_FD: Final = "CLEANRL_PROGRESS_FD"
CLEANRL_TEAM_STORE: Final = "CLEANRL_TEAM_STORE"  # where the processes of one training find each other
CLEANRL_HOME: Final = "CLEANRL_HOME"  # the user's: where a CleanRL checkout lies
CLEANRL_FASTLANE_INTERVAL_MS: Final = "CLEANRL_FASTLANE_INTERVAL_MS"  # at least so long between two frames
CLEANRL_FASTLANE_MAX_DIM: Final = "CLEANRL_FASTLANE_MAX_DIM"  # longest side of a frame, in pixels
GYM_GUI_FASTLANE_ONLY: Final = "GYM_GUI_FASTLANE_ONLY"
GYM_GUI_FASTLANE_SLOT: Final = "GYM_GUI_FASTLANE_SLOT"  # which environment is drawn
GYM_GUI_FASTLANE_VIDEO_MODE: Final = "GYM_GUI_FASTLANE_VIDEO_MODE"  # single, grid or off
GYM_GUI_FASTLANE_GRID_LIMIT: Final = "GYM_GUI_FASTLANE_GRID_LIMIT"  # how many at most, as tiles
TRACK_TENSORBOARD: Final = "TRACK_TENSORBOARD"
TRACK_WANDB: Final = "TRACK_WANDB"

# -- Weights & Biases reads these itself, but for the VPN's
WANDB_MODE: Final = "WANDB_MODE"
WANDB_DIR: Final = "WANDB_DIR"
WANDB_NAME: Final = "WANDB_NAME"
WANDB_RUN_ID: Final = "WANDB_RUN_ID"
WANDB_RESUME: Final = "WANDB_RESUME"
WANDB_PROJECT: Final = "WANDB_PROJECT"
WANDB_ENTITY: Final = "WANDB_ENTITY"
WANDB_API_KEY: Final = "WANDB_API_KEY"  # secret
WANDB_HTTP_PROXY: Final = "WANDB_HTTP_PROXY"
WANDB_HTTPS_PROXY: Final = "WANDB_HTTPS_PROXY"
WANDB_VPN_HTTP_PROXY: Final = "WANDB_VPN_HTTP_PROXY"
WANDB_VPN_HTTPS_PROXY: Final = "WANDB_VPN_HTTPS_PROXY"

# -- accelerators and threads
CUDA_VISIBLE_DEVICES: Final = "CUDA_VISIBLE_DEVICES"
MOSAIC_GPUS_MANDATORY: Final = "MOSAIC_GPUS_MANDATORY"  # how many GPUs the run is not to do without
THREAD_COUNTS: Final = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS")
