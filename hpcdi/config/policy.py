"""Settings that policies share: `policy` in an experiment. `algorithms` has those of each."""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Iterator
from typing import Any, ClassVar, Self

from hpcdi.config.fields import ComponentConfig, component, section, sections, setting
from hpcdi.config.replay import AdvancedBufferConfig, BufferConfig
from hpcdi.config.roles import (
    CommanderConfig,
    EvaluatorConfig,
    LearnerConfig,
    ParallelCollectorConfig,
    SerialCollectorConfig,
    SoloCommanderConfig,
)
from hpcdi.dataclass import dataclass
from hpcdi.errors import Problem
from hpcdi.types import Interval, Leaf, SequenceRule, Settings
from hpcdi.utils.registry import (
    BUFFER_REGISTRY,
    LEARNER_REGISTRY,
    PARALLEL_COLLECTOR_REGISTRY,
    PARALLEL_COMMANDER_REGISTRY,
    SERIAL_COLLECTOR_REGISTRY,
    SERIAL_EVALUATOR_REGISTRY,
)

MOST_ROWS = 65_535
"""Of an item or a sequence: the columns that count them have 16 bits."""
TRANSITIONS_PER_UPDATE = 64
"""Where the experiment does not say: about what a run of four ranks does on two cores."""
PAPER = "paper"
"""A replay ratio: that of the algorithm's paper."""


@dataclass(frozen=True)
class EpsConfig:
    """Schedule of the exploration rate, over environment steps of the whole run."""

    type: str = setting("exp", "'exp' or 'linear' decay", choices=("exp", "linear"))
    start: float = setting(0.95, "rate at step 0", minimum=0, maximum=1)
    end: float = setting(0.1, "rate that is approached", minimum=0, maximum=1)
    decay: int = setting(10000, "steps: 1/e of the way (exp), or the whole way (linear)", minimum=1)
    ladder: float = setting(
        0.0,
        "as in Ape-X, environments explore differently: from the first at this rate to the "
        "last of all collectors at rate ** (1 + ladder). There: 7, with start and end 0.4",
        minimum=0,
    )
    duration: float = setting(
        0.0,
        "random actions last n steps with a probability that falls as n ** -duration, where "
        "single ones come to nothing (ez-greedy, Dabney et al. 2021: 2); 0: one step",
        minimum=0,
    )

    def problems(self) -> Iterator[Problem]:
        """Rules over several settings."""
        if 0 < self.duration <= 1:
            yield Problem("duration", "must be above 1, or 0: else random actions never end")

    def rate(self, env_steps: int) -> float:
        """Returns the rate after a number of environment steps.

        "exp": ``end + (start - end) * exp(-step / decay)``; "linear": from `start` at step 0 to
        `end` at step `decay`, and `end` from there on.
        """
        if self.type == "exp":
            return self.end + (self.start - self.end) * math.exp(-env_steps / self.decay)
        return self.start + (self.end - self.start) * min(max(env_steps / self.decay, 0.0), 1.0)


_BUILT_IN = {
    "type": ("",),
    "encoder": ("", "auto", "mlp", "nature_cnn", "impala_cnn", "small_cnn", "multi"),
    "memory": ("", "none", "lstm", "gru", "gtrxl"),
    "head": ("", "q", "dueling_q", "actor_critic", "linear"),
}
"""Names of the parts that `networks` has in its slots, without importing torch."""
ACTIVATIONS = ("tanh", "relu", "elu", "gelu", "silu")
INITIALIZATIONS = (
    "orthogonal",
    "xavier_uniform",
    "xavier_normal",
    "kaiming_uniform",
    "kaiming_normal",
)
"""Functions of `torch.nn.init`, without the underscore at their end."""


@dataclass(frozen=True)
class ModelConfig:
    """The network, see `hpcdi.policy.networks`; shapes left empty are the environment's."""

    HEADS: ClassVar[tuple[str, ...]] = ("q", "dueling_q", "linear")
    """hpcdi's heads that return what the algorithm learns."""

    type: str = setting("", "your factory of the whole network, 'my_module:make'; empty: the slots")
    kwargs: dict[str, Any] = setting({}, "keyword arguments of your factory")
    obs_shape: int | tuple[int, ...] | None = setting(None, "shape of an observation")
    obs_leaves: tuple[Leaf, ...] = sections(
        Leaf, "arrays of an observation, where its shape alone does not say what it is"
    )
    action_shape: int | tuple[int, ...] | None = setting(
        None,
        "number of discrete actions, or shape of a continuous one; of actions of several "
        "parts the number of all outputs",
    )
    encoder: str = setting(
        "auto",
        "observations to features: mlp, nature_cnn, impala_cnn, small_cnn, multi (of several "
        "arrays), auto (by the space), or 'my_module:make'",
    )
    leaf_encoders: dict[str, str] = setting(
        {}, "with multi: array -> its encoder, e.g. {camera: impala_cnn}; else auto"
    )
    embedding_size: int = setting(
        0,
        "features that are learnt of each discrete part of an observation; 0: it is one-hot",
        minimum=0,
    )
    encoder_hidden_size_list: tuple[int, ...] = setting(
        (128, 128), "sizes of the hidden layers", minimum=1
    )
    activation: str = setting("relu", "of the hidden layers", choices=ACTIVATIONS)
    layer_norm: bool = setting(False, "normalise each hidden layer before its activation")
    init: str = setting(
        "",
        "how the weights of linear and convolutional layers are drawn, biases being 0, except in "
        "an encoder or a memory of yours; empty: orthogonal for PPO and IMPALA, else PyTorch's own",
        choices=("", *INITIALIZATIONS),
    )
    init_gain: float = setting(1.0, "scale of weights drawn orthogonal or xavier", above=0)
    memory: str = setting(
        "none", "what is remembered within an episode: none, lstm, gru, gtrxl, or 'my_module:make'"
    )
    memory_size: int = setting(
        128, "size of the memory's state; of gtrxl that of a step in a layer", minimum=1
    )
    memory_len: int = setting(
        64, "earlier steps that each layer of gtrxl attends to", minimum=1, maximum=MOST_ROWS
    )
    memory_layers: int = setting(1, "layers of gtrxl", minimum=1)
    memory_heads: int = setting(4, "heads of attention in each layer of gtrxl", minimum=1)
    memory_span: int | None = setting(
        None,
        "steps that an lstm or gru keeps something for before it has learnt anything (chrono "
        "initialization, Tallec and Ollivier 2018); empty: some few",
        minimum=3,
    )
    head: str = setting("", "features to outputs, or 'my_module:make'; empty: the algorithm's own")

    def problems(self) -> Iterator[Problem]:
        """Rules over several settings."""
        if not self.encoder_hidden_size_list:
            yield Problem("encoder_hidden_size_list", "needs at least one size")
        named = {slot: (slot, getattr(self, slot)) for slot in _BUILT_IN}
        for leaf, name in self.leaf_encoders.items():
            named[f"leaf_encoders.{leaf}"] = "encoder", name
        for path, (slot, name) in named.items():
            if name not in _BUILT_IN[slot] and not re.fullmatch(r"[\w.]+:\w+", name):
                known = ", ".join(_BUILT_IN[slot][1:])
                yield Problem(path, f"is {name!r}: none of {known}, nor a 'my_module:make'")
        if self.head in _BUILT_IN["head"][1:] and self.head not in self.HEADS:
            known = ", ".join(self.HEADS)
            yield Problem("head", f"is {self.head!r}, and this algorithm's may be {known}")
        if self.memory == "gtrxl":
            if self.memory_size % (2 * self.memory_heads):
                parts = f"twice memory_heads ({self.memory_heads})"
                yield Problem("memory_size", f"is {self.memory_size}, no multiple of {parts}")
            if self.memory_span is not None:
                yield Problem("memory_span", "is for lstm and gru; gtrxl has memory_len")


@dataclass(frozen=True)
class CollectConfig:
    """Settings of collecting."""

    n_sample: int = setting(
        32,
        "transitions of one environment that are processed together; n-step returns end there",
        minimum=1,
        maximum=MOST_ROWS,
    )
    unroll_len: int = setting(
        1,
        "transitions in a row of an episode that one sample of a memory holds, at most; above 1 "
        "with a memory, 1 without",
        minimum=1,
        maximum=MOST_ROWS,
    )
    collector: ParallelCollectorConfig = component(
        PARALLEL_COLLECTOR_REGISTRY, "zergling", "the collecting loop"
    )
    serial_collector: SerialCollectorConfig = component(
        SERIAL_COLLECTOR_REGISTRY, "sample", "the collecting loop of a serial run"
    )


@dataclass(frozen=True)
class EvalConfig:
    """Settings of evaluations."""

    every: str | None = setting(
        None,
        "how often, over ranks and in one process: '20000 env_steps', '500 iterations' or "
        "'10 seconds'; empty: as DI-engine has it, evaluator.eval_freq iterations of a serial run, "
        "other.commander.eval_interval seconds over ranks",
    )
    max_steps: int = setting(
        100_000,
        "steps of an evaluated episode, after which it is cut, and counts with its return so far",
        minimum=1,
    )
    sample: bool = setting(
        False, "draw the evaluated actions from the policy's distribution; else the likeliest"
    )
    evaluator: EvaluatorConfig = component(
        SERIAL_EVALUATOR_REGISTRY, "interaction", "the evaluator of a serial run"
    )

    def problems(self) -> Iterator[Problem]:
        """Rules over several settings."""
        if self.every is not None and Interval.of(self.every) is None:
            message = f"is {self.every!r}, not a number and one of {', '.join(Interval.UNITS)}"
            yield Problem("every", f"{message}, such as '20000 env_steps'")


@dataclass(frozen=True)
class StepConfig:
    """Settings of a gradient step, for every algorithm; see `hpcdi.policy.gradient_step`."""

    precision: str = setting(
        "float32",
        "what the network computes in; bf16 and fp16 are faster on a GPU (autocast; "
        "weights stay float32), and fp16 scales its losses and skips steps that overflow",
        choices=("float32", "bf16", "fp16"),
    )
    accumulate: int = setting(
        1,
        "parts that a batch is computed in, one after the other, to need less memory; their "
        "gradients add up to the whole batch's",
        minimum=1,
    )
    grad_clip_norm: float = setting(0.0, "clip the gradient's norm to this; 0: do not", minimum=0)
    compile: bool = setting(
        False,
        "have torch.compile make the network faster; its first updates take some ten "
        "seconds longer, and it needs a C++ compiler where the learner runs",
    )
    cuda_graphs: bool | None = setting(
        None,
        "replay updates on a GPU as CUDA graphs, so that launching kernels takes no time: of one "
        "learner, with Adam or AdamW, without a memory or fp16; of PPO without target_kl and with "
        "no schedule but the learning rate's; not of IMPALA and R2D2. Empty: where algorithm and "
        "network are hpcdi's; true: yours, too, which do the same in each call then",
    )
    tf32: bool = setting(
        False,
        "let a GPU multiply float32 matrices with 10 bits of mantissa instead of 23, which "
        "is faster",
    )


OPTIMIZERS = (
    "Adam",
    "AdamW",
    "RAdam",
    "NAdam",
    "Adamax",
    "Adagrad",
    "Adadelta",
    "RMSprop",
    "Rprop",
    "SGD",
    "ASGD",
)
"""Of torch.optim, without importing it; others are 'torch.optim:Name'."""


@dataclass(frozen=True)
class ScheduleConfig:
    """Schedule of a setting, which moves from its own value to `end` during the run."""

    key: str = setting("learning_rate", "the setting, of the section that this is in")
    type: str = setting("linear", "'linear', or 'exp' decay", choices=("linear", "exp"))
    end: float = setting(0.0, "value that it ends at, or approaches", minimum=0)
    iterations: int | None = setting(
        None, "train iterations: the whole way (linear), or 1/e of it (exp)", minimum=1
    )
    env_steps: int | None = setting(None, "environment steps instead of iterations", minimum=1)

    def problems(self) -> Iterator[Problem]:
        """Rules over several settings."""
        if (self.iterations is None) == (self.env_steps is None):
            yield Problem("iterations", "either this or env_steps says how long it takes")

    def value(self, start: float, iterations: int, env_steps: int) -> float:
        """Returns the setting's value after a number of train iterations and environment steps."""
        if self.env_steps is not None:
            way = env_steps / self.env_steps
        else:
            way = iterations / (self.iterations or 1)
        share = math.exp(-way) if self.type == "exp" else max(0.0, 1 - way)
        return self.end + (start - self.end) * share


@dataclass(frozen=True)
class BaseLearnConfig:
    """Settings of learning that every run reads, for every policy."""

    PAPER_RATIO: ClassVar[float | None] = None
    """See `PolicyConfig.paper_ratio`."""

    batch_size: int = setting(64, "samples of one update (of each learner)", minimum=1)
    update_per_collect: int | None = setting(
        None,
        "updates after each collecting of a serial or deterministic run; empty: one for 64 "
        "transitions, or one on-policy",
        minimum=1,
    )
    replay_ratio: float | str | None = setting(
        PAPER,
        "samples drawn for each transition, by all learners together, once the buffer has "
        "its first items; learners wait for collectors, or collectors for learners. 'paper': as "
        "the algorithm's paper has it (DQN, C51, QR-DQN, discrete CQL: 8, and so VDN and QMIX, "
        "which with a memory count the steps of a sequence; discrete SAC: 16; SAC, TQC, TD3, CQL, "
        "IQL: 256), unless update_per_collect or a push_sample_rate_limit says it; null: both run "
        "free",
        above=0,
    )
    learner: LearnerConfig = component(LEARNER_REGISTRY, "base", "the training loop")

    def problems(self) -> Iterator[Problem]:
        """Rules over several settings."""
        if isinstance(self.replay_ratio, str) and self.replay_ratio != PAPER:
            yield Problem("replay_ratio", f"is a number, null or {PAPER!r}")
        if self.replay_ratio == math.inf:
            yield Problem("replay_ratio", "is infinite; null: learners wait for no collector")
        if isinstance(self.replay_ratio, float | int) and self.update_per_collect is not None:
            yield Problem("update_per_collect", "is set beside replay_ratio; leave one out")


@dataclass(frozen=True)
class LearnConfig(StepConfig, BaseLearnConfig):
    """Settings of updates by an optimizer of torch; algorithms add their own."""

    SCHEDULED: ClassVar[tuple[str, ...]] = ("learning_rate",)
    """Settings that may have a schedule."""

    learning_rate: float = setting(1e-3, "step size of the optimizer", above=0)
    optimizer: dict[str, Any] = setting(
        {"type": "Adam"},
        "type: its name in torch.optim, or 'my_module:Class'; beside it its "
        "arguments but lr, e.g. {type: AdamW, weight_decay: 0.01}; SAC's temperature and the "
        "predictor of an exploration bonus do not decay",
    )
    extra_loss: dict[str, Any] = setting(
        {},
        "a loss of yours that is added to the algorithm's, and its arguments: {type: "
        "'my_module:Class', weight: 0.5}; see hpcdi/policy/VARY.md",
    )
    schedule: tuple[ScheduleConfig, ...] = sections(
        ScheduleConfig, "settings of this section that change while the run goes on"
    )

    def problems(self) -> Iterator[Problem]:
        """Rules over several settings."""
        yield from BaseLearnConfig.problems(self)
        keys = [schedule.key for schedule in self.schedule]
        for key in keys:
            if key not in self.SCHEDULED:
                message = (
                    f"{key!r} has no schedules; those that may are {', '.join(self.SCHEDULED)}"
                )
                yield Problem("schedule.key", message)
            elif keys.count(key) > 1:
                yield Problem("schedule.key", f"{key!r} is there twice")
        name = self.optimizer.get("type", "Adam")
        if name not in OPTIMIZERS and ":" not in str(name):
            message = f"is {name!r}: none of {', '.join(OPTIMIZERS)}, nor a 'my_module:Class'"
            yield Problem("optimizer.type", message)
        if self.extra_loss and ":" not in str(self.extra_loss.get("type", "")):
            yield Problem("extra_loss", "has no type 'my_module:Class'")
        if "lr" in self.optimizer:
            yield Problem("optimizer.lr", "is learn.learning_rate")

    def at(self, iterations: int, env_steps: int) -> Self:
        """Returns these settings after a number of train iterations and environment steps."""
        if not self.schedule:
            return self
        now: dict[str, Any] = {
            each.key: each.value(getattr(self, each.key), iterations, env_steps)
            for each in self.schedule
        }
        return dataclasses.replace(self, **now)


@dataclass(frozen=True)
class BaseOtherConfig:
    """Settings of replay and of tasks that every run reads, for every policy."""

    replay_buffer: BufferConfig = component(BUFFER_REGISTRY, "advanced", "the replay buffer")
    commander: CommanderConfig = component(
        PARALLEL_COMMANDER_REGISTRY, "solo", "who sets tasks, and when it ends"
    )


@dataclass(frozen=True)
class OtherConfig(BaseOtherConfig):
    """Settings that belong to neither learning nor collecting alone."""

    eps: EpsConfig = section(EpsConfig, "exploration rate")


@dataclass(frozen=True)
class NormalizeConfig:
    """Running normalisation, see `hpcdi.policy.normalization`; the network keeps the statistics."""

    observation: bool | None = setting(
        False,
        "observations to mean 0 and deviation 1; pictures of bytes and discrete ones stay. Empty: "
        "where there are others",
    )
    reward: bool = setting(
        False,
        "rewards divided by the deviation of the discounted return; evaluations report them "
        "as they are",
    )
    clip: float = setting(
        10.0, "limit to normalised observations, and to scaled rewards of single steps", above=0
    )


@dataclass(frozen=True)
class ExplorationBonusConfig:
    """A reward for what is new, see `hpcdi.policy.exploration_bonus`."""

    type: str = setting(
        "none",
        "rnd: random network distillation (Burda et al. 2018); icm: curiosity, by a model of what "
        "actions do (Pathak et al. 2017)",
        choices=("none", "rnd", "icm"),
    )
    weight: float = setting(0.1, "of the bonus, which is about 1 at first, in the reward", above=0)
    learning_rate: float = setting(3e-4, "step size of the predictor's optimizer", above=0)
    steps: int = setting(1, "gradient steps of the predictor in a train iteration", minimum=1)
    features: int = setting(
        64, "outputs of the random network; of icm, features that are predicted", minimum=1
    )


@dataclass(frozen=True)
class PolicyConfig(ComponentConfig):
    """Settings that every policy has, and what a run must know of the algorithm."""

    CORRECTS_STALENESS: ClassVar[bool] = False
    """True if an `on_policy` algorithm may learn from older policies' data: nobody waits."""
    LEARNS_FROM_SEQUENCES: ClassVar[bool] = False
    """True if samples are sequences, with or without a memory."""
    TAKES_MEMORY: ClassVar[bool] = False
    """True if `update` learns from sequences by a network's memory."""
    DRAWS_ACTIONS: ClassVar[bool] = True
    """True if `act` draws from the policy's distribution, which evaluations may do, too."""
    IMITATES: ClassVar[bool] = False
    """True if the algorithm learns from given data alone, and never from its own."""

    cuda: bool = setting(False, "learn on a GPU")
    on_policy: bool = setting(False, "data are used once, by the policy that made them")
    priority: bool = setting(False, "sample in proportion to priority")
    priority_IS_weight: bool = setting(False, "weigh samples against the bias of priorities")
    discount_factor: float = setting(0.97, "discount of one step", minimum=0, maximum=1)
    random_collect_size: int = setting(
        0, "transitions that are made at random before learning begins", minimum=0
    )
    nstep: int = setting(
        1, "steps of reward before the value is bootstrapped", minimum=1, maximum=1000
    )
    collect: CollectConfig = section(CollectConfig, "collecting")
    eval: EvalConfig = section(EvalConfig, "evaluating")
    learn: BaseLearnConfig = section(BaseLearnConfig, "learning")
    other: BaseOtherConfig = section(BaseOtherConfig, "replay, command")

    @property
    def samples_sequences(self) -> bool:
        """True if an item of the replay buffer is a sequence; on-policy there is none."""
        return not self.on_policy and (self.LEARNS_FROM_SEQUENCES or self.memory != "none")

    @property
    def sequence(self) -> SequenceRule:
        """Decides what an item of the replay buffer is: a transition, or a sequence."""
        if not self.samples_sequences:
            return SequenceRule()
        length = self.collect.unroll_len
        return SequenceRule(length, getattr(self.collect, "stride", length), self.nstep)

    @property
    def burn_in(self) -> int:
        """Steps of a sequence that its memory reads first, and that are not learnt from."""
        return getattr(self.learn, "burn_in", 0) if self.samples_sequences else 0

    @property
    def memory(self) -> str:
        """The memory of the policy's network, see `ModelConfig.memory`."""
        return "none"

    @property
    def stack_len(self) -> int:
        """Earlier steps that are stored with an item: see `TrainColumns.stacks`."""
        return 0

    @property
    def buffer(self) -> AdvancedBufferConfig:
        """Settings of a run's replay buffer.

        Raises:
            TypeError: it is of a type that no run has; see `hpcdi.config.schema.check`.
        """
        buffer = self.other.replay_buffer
        if not isinstance(buffer, AdvancedBufferConfig):
            raise TypeError(f"a run has no replay buffer of type {buffer.type!r}")
        return buffer

    @property
    def item_rule(self) -> SequenceRule:
        """What an item of the replay buffer is, and how long the items of blocks are."""
        item_len = self.collect.n_sample
        return dataclasses.replace(self.sequence, burn_in=self.burn_in, item_len=item_len)

    @property
    def warm_up(self) -> int:
        """Transitions before learning begins."""
        buffer = self.other.replay_buffer
        items = buffer.min_fill if isinstance(buffer, AdvancedBufferConfig) else 0
        rule, length = self.item_rule, self.collect.n_sample
        # of an item's rows one is no transition
        apart = max(rule.stride, rule.apart * length / (length + 1))
        return max(self.random_collect_size, int((items - 1) * apart) + 1)

    @property
    def replay_ratio(self) -> float | None:
        """Samples drawn for each transition; None: no setting limits them, or another one does."""
        ratio, buffer = self.learn.replay_ratio, self.other.replay_buffer
        if not isinstance(ratio, str):
            return ratio
        is_limited = (
            isinstance(buffer, AdvancedBufferConfig)
            and buffer.thruput_controller.push_sample_rate_limit.is_set
        )
        if self.on_policy or is_limited or self.learn.update_per_collect is not None:
            return None
        return self.paper_ratio

    @property
    def paper_ratio(self) -> float | None:
        """What `replay_ratio` is in the algorithm's paper; None: it has none."""
        return self.learn.PAPER_RATIO

    def usual_updates(self, transitions: int) -> int:
        """Returns the updates after a number of transitions, where no setting says it."""
        return 1 if self.on_policy else max(1, round(transitions / TRANSITIONS_PER_UPDATE))

    def collect_setting(self, info: Settings) -> dict[str, Any]:  # noqa: ARG002
        """Returns what rank 0 tells collectors: keyword arguments of the policy's acting.

        Args:
            info: ``envstep``, environment steps of the run, and scalars of the last update.
        """
        return {}

    def problems(self) -> Iterator[Problem]:
        """Rules over several settings; an algorithm's own come on top, `on_policy` among them."""
        if self.eval.every is not None:
            message = f"eval.every says how often to evaluate ({self.eval.every}); leave this out"
            commander, evaluator = self.other.commander, self.eval.evaluator
            if (
                isinstance(commander, SoloCommanderConfig)
                and commander.eval_interval != type(commander)().eval_interval
            ):
                yield Problem("other.commander.eval_interval", message)
            if evaluator.eval_freq != type(evaluator)().eval_freq:
                yield Problem("eval.evaluator.eval_freq", message)
        if self.eval.sample and not self.DRAWS_ACTIONS:
            yield Problem("eval.sample", f"{self.type} has no distribution of actions to draw from")
        if self.on_policy and self.replay_ratio is not None:
            yield Problem("learn.replay_ratio", "on-policy, each transition is learnt from once")
        yield from self._problems_of_priority()
        is_alone = self.memory == "none" and not self.LEARNS_FROM_SEQUENCES
        if self.memory != "none" and not self.TAKES_MEMORY:
            yield Problem("model.memory", no_memory(self.type))
        elif not self.LEARNS_FROM_SEQUENCES and is_alone != (self.collect.unroll_len == 1):
            yield Problem(
                "collect.unroll_len",
                "is the length of sequences for a memory, and model.memory is none"
                if is_alone
                else f"must be above 1: {self.memory} learns from that many transitions in a row",
            )
        if self.collect.unroll_len > self.collect.n_sample:
            message = f"is above collect.n_sample ({self.collect.n_sample}), where sequences end"
            yield Problem("collect.unroll_len", message)

    def _problems_of_priority(self) -> Iterator[Problem]:
        if self.on_policy and (self.priority or self.priority_IS_weight):
            name = self.type.upper()
            yield Problem("priority", f"is for replay buffers; {name} uses all its data alike")
        elif self.priority_IS_weight and not self.priority:
            yield Problem("priority_IS_weight", "has a meaning only with priority: true")


@dataclass(frozen=True)
class TorchPolicyConfig(PolicyConfig):
    """Settings that every policy in torch has; an algorithm's narrow the sections."""

    ACTIONS: ClassVar[tuple[str, ...]] = ("discrete", "continuous")
    """Kinds of action spaces that the algorithm can act in."""
    BOUNDED: ClassVar[bool] = False
    """True if continuous actions need bounds on both sides."""
    TAKES_MASKS: ClassVar[bool] = False
    """True if `act` and `greedy` heed masks of legal actions."""
    WHOLE_TEAMS: ClassVar[bool] = False
    """True if `update` learns from rows of whole teams, see `hpcdi.policy.players`."""
    TAKES_BONUS: ClassVar[bool] = False
    """True if an exploration bonus may be added to its rewards."""

    normalize: NormalizeConfig = section(NormalizeConfig, "running normalisation")
    exploration_bonus: ExplorationBonusConfig = section(
        ExplorationBonusConfig, "a reward for what is new"
    )
    model: ModelConfig = section(ModelConfig, "the network")
    learn: LearnConfig = section(LearnConfig, "learning")
    other: OtherConfig = section(OtherConfig, "exploration, replay, command")

    @property
    def memory(self) -> str:
        """The memory of the policy's network, see `ModelConfig.memory`."""
        return self.model.memory

    @property
    def stack_len(self) -> int:
        """See `PolicyConfig.stack_len`."""
        return self.model.memory_len if self.memory == "gtrxl" else 0

    @property
    def sees_state(self) -> bool:
        """True if learning needs the state of the player's team beside its observation."""
        return False

    @property
    def has_own_network(self) -> bool:
        """True if the network, or a part of it, is made by code of the user's."""
        model = self.model
        slots = (model.type, model.encoder, model.memory, model.head, *model.leaf_encoders.values())
        return any(":" in name for name in slots)

    @property
    def has_own_optimizer(self) -> bool:
        """True if the optimizer is another one than the algorithm's, or has other arguments."""
        return self.learn.optimizer != type(self.learn)().optimizer

    def problems(self) -> Iterator[Problem]:
        """Rules over several settings."""
        yield from PolicyConfig.problems(self)
        if self.exploration_bonus.type != "none" and (not self.TAKES_BONUS or self.WHOLE_TEAMS):
            why = "has no rewards to add it to" if self.IMITATES else "does not take one"
            said = "ppo, dqn, c51, qrdqn, sac, tqc, discrete_sac, td3, cql and discrete_cql do"
            yield Problem("exploration_bonus.type", f"{self.type} {why}; {said}")
        if self.exploration_bonus.type == "icm" and self.nstep > 1:
            said = (
                "icm predicts what comes of one action, and nstep is above 1; set nstep: 1, or rnd"
            )
            yield Problem("exploration_bonus.type", said)
        if self.learn.accumulate > self.learn.batch_size:
            yield Problem(
                "learn.accumulate",
                f"is above learn.batch_size ({self.learn.batch_size}): a part needs a sample",
            )


def no_memory(name: str) -> str:
    """Says that an algorithm has no use for a memory."""
    return (
        f"{name} learns from single transitions, and so no memory; use r2d2, ppo or impala, or set "
        "memory: none"
    )


@dataclass(frozen=True)
class OnPolicyConfig(TorchPolicyConfig):
    """Settings of algorithms that use their data once.

    `DATA` and `HORIZON` complete two messages: which data they use, and their horizon's setting.
    """

    DATA: ClassVar[str]
    HORIZON: ClassVar[str]

    on_policy: bool = setting(True, "data are used once, by the policy that made them")
    discount_factor: float = setting(0.99, "discount of one step", minimum=0, maximum=1)

    def problems(self) -> Iterator[Problem]:
        """Rules over several settings."""
        yield from TorchPolicyConfig.problems(self)
        name = self.type.upper()
        if not self.on_policy:
            yield Problem("on_policy", f"{name} {self.DATA}; leave this true")
        if self.nstep != 1:
            yield Problem("nstep", f"is not {name}'s; {self.HORIZON} says how far rewards count")


@dataclass(frozen=True)
class HindsightConfig:
    """Hindsight experience replay (HER), where an environment has goals."""

    goals: int = setting(
        0,
        "copies of what was collected whose goal is what was reached; 0: none. Goals are reached "
        "within collect.n_sample steps: let it be as long as an episode",
        minimum=0,
    )


@dataclass(frozen=True)
class ReplayPolicyConfig(TorchPolicyConfig):
    """Settings of algorithms that learn from a replay buffer."""

    DRAWS_ACTIONS = False

    hindsight: HindsightConfig = section(HindsightConfig, "hindsight experience replay")

    def problems(self) -> Iterator[Problem]:
        """Rules over several settings."""
        yield from TorchPolicyConfig.problems(self)
        if self.hindsight.goals and self.normalize.reward:
            said = "knows no returns of other goals (policy.hindsight); scale rewards by a wrapper"
            yield Problem("normalize.reward", said)
        if self.on_policy:
            yield Problem(
                "on_policy", f"{self.type.upper()} learns from a replay buffer; leave this false"
            )
        if self.nstep > self.collect.n_sample:
            yield Problem(
                "nstep", f"is above collect.n_sample ({self.collect.n_sample}), where it ends"
            )


@dataclass(frozen=True)
class ContinuousModelConfig(ModelConfig):
    """The networks of continuous, bounded actions; what is empty is the environment's."""

    action_low: tuple[float, ...] = setting((), "lower bounds of an action, flat")
    action_high: tuple[float, ...] = setting((), "upper bounds of an action, flat")
    action_dtype: str = setting("", "dtype of an action; whole numbers are rounded to")
    encoder_hidden_size_list: tuple[int, ...] = setting(
        (256, 256), "sizes of the hidden layers", minimum=1
    )

    def problems(self) -> Iterator[Problem]:
        """Rules over several settings."""
        yield from ModelConfig.problems(self)
        if len(self.action_low) != len(self.action_high):
            yield Problem("action_low", "has not as many numbers as model.action_high")


@dataclass(frozen=True)
class ContinuousConfig(ReplayPolicyConfig):
    """Settings of algorithms with a replay buffer for continuous, bounded actions."""

    ACTIONS = ("continuous",)
    BOUNDED = True

    discount_factor: float = setting(0.99, "discount of one step", minimum=0, maximum=1)
    model: ContinuousModelConfig = section(ContinuousModelConfig, "the networks")

    def usual_updates(self, transitions: int) -> int:
        """One a transition, as in the papers."""
        return transitions
