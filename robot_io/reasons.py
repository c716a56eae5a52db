"""Why the safety gate changed an action: bit flags, recorded as the column ``gate_reasons``."""

from enum import IntFlag


class Reason(IntFlag):
    """Reasons of the safety gate. The control loop computes with their plain numbers, which is faster."""

    NOT_FINITE = 1
    WRONG_SHAPE = 2
    JOINT_LIMIT = 4
    WORKSPACE = 8
    OBSERVATION_STALE = 16
    ACTION_STALE = 32
    RATE = 64
    LATCHED = 128
    SMOOTHED = 256
    FOLLOWING_ERROR = 512
    FROZEN = 1024
    EFFORT = 2048
    OUT_OF_RANGE = 4096
    LOOP_PAUSED = 8192
    OTHER_PUBLISHER = 16384
    E_STOP = 32768
    SELF_COLLISION = 65536
    DEAD_MAN = 131072
    CONTROLLERS = 262144
    INVALID_QUATERNION = 524288
