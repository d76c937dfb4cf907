"""Settings of the built-in algorithms: `policy` in an experiment, for each of its types."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar

from hpcdi.config.fields import section, sections, setting
from hpcdi.config.policy import (
    ACTIVATIONS,
    MOST_ROWS,
    CollectConfig,
    ContinuousConfig,
    ContinuousModelConfig,
    LearnConfig,
    ModelConfig,
    OnPolicyConfig,
    ReplayPolicyConfig,
)
from hpcdi.dataclass import dataclass
from hpcdi.errors import Problem
from hpcdi.types import Leaf, SequenceRule, Settings


@dataclass(frozen=True)
class ActorCriticModelConfig(ContinuousModelConfig):
    """The networks; shapes and bounds left empty are taken from the environment."""

    HEADS: ClassVar[tuple[str, ...]] = ("actor_critic",)

    action_space: str | None = setting(
        None,
        "'discrete', 'continuous' (a Box), 'multi_discrete' or 'mixed' (a Dict or Tuple)",
        choices=(None, "discrete", "continuous", "multi_discrete", "mixed"),
    )
    action_leaves: tuple[Leaf, ...] = sections(Leaf, "parts of an action, where it has several")
    encoder_hidden_size_list: tuple[int, ...] = setting(
        (64, 64), "sizes of the hidden layers", minimum=1
    )
    activation: str = setting("tanh", "of the hidden layers", choices=ACTIVATIONS)
    share_encoder: bool = setting(False, "one encoder for policy and value, e.g. of images")
    scale_actions: bool = setting(
        True, "of a Box with bounds, the distribution's -1..1 is between them; else their own unit"
    )
    log_std_init: float = setting(
        0.0,
        "logarithm of a continuous action's deviation at first; 0: 1, half of the bounds' width",
    )
    value_only: tuple[str, ...] = setting(
        (),
        "arrays of an observation that the value alone sees, and acting does without; in a team "
        "[state] is what the whole team sees (MAPPO, Yu et al. 2022)",
    )

    def problems(self) -> Iterator[Problem]:
        """Rules over several settings."""
        yield from ContinuousModelConfig.problems(self)
        if self.value_only and self.share_encoder:
            yield Problem("value_only", "needs encoders of their own: set share_encoder: false")
        if self.action_space == "discrete" and isinstance(self.action_shape, tuple):
            yield Problem("action_shape", "is a number where actions are discrete")


@dataclass(frozen=True)
class ActorCriticConfig(OnPolicyConfig):
    """Settings of algorithms with a policy and a value."""

    ACTIONS = ("discrete", "continuous", "multi_discrete", "mixed")
    TAKES_MASKS = True
    TAKES_MEMORY = True

    model: ActorCriticModelConfig = section(ActorCriticModelConfig, "the networks")

    @property
    def sees_state(self) -> bool:
        """See `TorchPolicyConfig.sees_state`: the value does, in a team."""
        return "state" in self.model.value_only


@dataclass(frozen=True)
class DiscreteModelConfig(ModelConfig):
    """The networks; shapes left empty are taken from the environment."""

    action_shape: int | None = setting(None, "number of discrete actions", minimum=1)

    @property
    def actions(self) -> int:
        """Number of discrete actions.

        Raises:
            TypeError: the settings do not know the environment's.
        """
        if self.action_shape is None:
            raise TypeError(
                "policy.model.action_shape is not known: set it, or have the environment say it"
            )
        return self.action_shape


@dataclass(frozen=True)
class DQNModelConfig(DiscreteModelConfig):
    """The network; shapes left empty are taken from the environment."""

    dueling: bool = setting(False, "value and advantage apart (Wang et al. 2016)")
    noisy: bool = setting(
        False,
        "explore by learnt noise on the weights of all linear layers, which evaluations are "
        "without; set other.eps.start and .end to 0 beside it",
    )

    @property
    def outputs(self) -> int:
        """Outputs of the network for each action, side by side."""
        return 1


@dataclass(frozen=True)
class DQNLearnConfig(LearnConfig):
    """The update."""

    PAPER_RATIO: ClassVar[float | None] = 8  # batches of 32 after every 4 steps (Mnih et al. 2015)

    target_update_freq: int = setting(
        200, "updates between renewals of the target network", minimum=1
    )
    double: bool = setting(True, "choose by one network, value by the other (double Q-learning)")
    loss: str = setting("huber", "of the TD error", choices=("huber", "mse"))


@dataclass(frozen=True)
class DQNConfig(ReplayPolicyConfig):
    """Settings of DQN."""

    ACTIONS = ("discrete",)
    TAKES_MASKS = True
    TAKES_BONUS = True

    type: str = "dqn"
    model: DQNModelConfig = section(DQNModelConfig, "the network")
    learn: DQNLearnConfig = section(DQNLearnConfig, "the update")

    def collect_setting(self, info: Settings) -> dict[str, Any]:
        """The exploration rate, by the steps of the whole run."""
        return {"eps": self.other.eps.rate(info.get("envstep", 0))}


def _problems_of_sequences(length: int, stride: int, burn_in: int) -> Iterator[Problem]:
    """Yields why sequences would leave something out, or hold nothing to learn from."""
    if stride > length:
        yield Problem("collect.stride", "is above unroll_len: transitions would be left out")
    if burn_in >= length:
        yield Problem("learn.burn_in", "leaves nothing of collect.unroll_len to learn from")


@dataclass(frozen=True)
class VDNLearnConfig(DQNLearnConfig):
    """The update; with a memory `batch_size` counts sequences."""

    burn_in: int = setting(
        0,
        "steps at the start of a sequence that only the memory reads, but for an episode's "
        "start; so nothing is learnt from so many steps behind each end of collect.n_sample "
        "within an episode; 0: where sequences are whole episodes",
        minimum=0,
    )


@dataclass(frozen=True)
class VDNCollectConfig(CollectConfig):
    """Collecting."""

    stride: int | None = setting(
        None,
        "with a memory: steps from one sequence's start to the next's; empty: unroll_len - "
        "learn.burn_in, so that no step is learnt from twice",
        minimum=1,
    )


@dataclass(frozen=True)
class VDNConfig(DQNConfig):
    """Settings of VDN; a memory learns from sequences of `collect.unroll_len` steps of the team."""

    WHOLE_TEAMS = True
    TAKES_MEMORY = True

    type: str = "vdn"
    players: int = setting(1, "players of the team that act by it, filled in", minimum=1)
    learn: VDNLearnConfig = section(VDNLearnConfig, "the update")
    collect: VDNCollectConfig = section(VDNCollectConfig, "collecting")

    @property
    def paper_ratio(self) -> float | None:
        """See `PolicyConfig.paper_ratio`; a sample of a memory is a whole sequence."""
        ratio = super().paper_ratio
        return ratio / self.collect.unroll_len if ratio and self.samples_sequences else ratio

    @property
    def sequence(self) -> SequenceRule:
        """See `PolicyConfig.sequence`."""
        if not self.samples_sequences:
            return SequenceRule()
        length = self.collect.unroll_len
        stride = self.collect.stride or length - self.learn.burn_in
        return SequenceRule(length, stride, self.nstep)

    def problems(self) -> Iterator[Problem]:
        """Rules over several settings."""
        yield from DQNConfig.problems(self)
        burn_in = 0 if self.memory == "none" else self.learn.burn_in
        length, stride = self.collect.unroll_len, self.collect.stride
        yield from _problems_of_sequences(length, stride or 1, burn_in)
        if self.memory == "none" and stride is not None:
            yield Problem("collect.stride", "is for a memory, and model.memory is none")
        if self.memory == "none" and self.learn.burn_in:
            yield Problem("learn.burn_in", "is for a memory, and model.memory is none")
        if self.learn.accumulate > 1:
            yield Problem("learn.accumulate", "would part teams, and they are learnt from whole")


@dataclass(frozen=True)
class QMIXModelConfig(DQNModelConfig):
    """The network, and that which mixes values."""

    mixing_size: int = setting(32, "hidden units of the mixing network", minimum=1)
    hypernet_size: int = setting(
        64, "hidden units of the networks that make its weights of the state; 0: linear", minimum=0
    )


@dataclass(frozen=True)
class QMIXConfig(VDNConfig):
    """Settings of QMIX."""

    type: str = "qmix"
    model: QMIXModelConfig = section(QMIXModelConfig, "the networks")

    @property
    def sees_state(self) -> bool:
        """See `TorchPolicyConfig.sees_state`: the mixing network does."""
        return True


@dataclass(frozen=True)
class C51ModelConfig(DQNModelConfig):
    """The network, and the returns that it tells apart."""

    n_atom: int = setting(51, "returns that a distribution consists of", minimum=2)
    v_min: float = setting(-10.0, "the least of them")
    v_max: float = setting(10.0, "the largest of them")

    @property
    def outputs(self) -> int:
        """Logits for each action."""
        return self.n_atom

    def problems(self) -> Iterator[Problem]:
        """Rules over several settings."""
        yield from DQNModelConfig.problems(self)
        if self.v_min >= self.v_max:
            yield Problem("v_min", f"is not below model.v_max ({self.v_max:g})")


@dataclass(frozen=True)
class C51LearnConfig(DQNLearnConfig):
    """The update."""

    double: bool = setting(False, "choose by one network, value by the other (as in Rainbow)")
    loss: str = setting("cross_entropy", "of the distribution", choices=("cross_entropy",))


@dataclass(frozen=True)
class C51Config(DQNConfig):
    """Settings of C51."""

    type: str = "c51"
    model: C51ModelConfig = section(C51ModelConfig, "the network")
    learn: C51LearnConfig = section(C51LearnConfig, "the update")


@dataclass(frozen=True)
class QRDQNModelConfig(DQNModelConfig):
    """The network, and how finely it tells returns apart."""

    num_quantiles: int = setting(64, "quantiles that a distribution consists of", minimum=1)

    @property
    def outputs(self) -> int:
        """Quantiles of each action."""
        return self.num_quantiles


@dataclass(frozen=True)
class QRDQNLearnConfig(DQNLearnConfig):
    """The update."""

    double: bool = setting(False, "choose by one network, value by the other (double Q-learning)")
    loss: str = setting("quantile_huber", "of the quantiles", choices=("quantile_huber",))
    kappa: float = setting(1.0, "errors from which on the loss is linear", above=0)


@dataclass(frozen=True)
class QRDQNConfig(DQNConfig):
    """Settings of QR-DQN."""

    type: str = "qrdqn"
    model: QRDQNModelConfig = section(QRDQNModelConfig, "the network")
    learn: QRDQNLearnConfig = section(QRDQNLearnConfig, "the update")


@dataclass(frozen=True)
class R2D2ModelConfig(DQNModelConfig):
    """The network."""

    dueling: bool = setting(True, "value and advantage apart (Wang et al. 2016)")
    memory: str = setting("lstm", "lstm, gru, gtrxl, or 'my_module:make'")


@dataclass(frozen=True)
class R2D2LearnConfig(DQNLearnConfig):
    """The update; `batch_size` counts sequences."""

    PAPER_RATIO = None  # as many as come (Kapturowski et al. 2019)

    loss: str = setting("mse", "of the TD error; mse: half its square", choices=("huber", "mse"))
    burn_in: int = setting(
        10,
        "steps at the start of a sequence that only the memory reads, but for an episode's start; "
        "so nothing is learnt from so many steps behind each end of collect.n_sample within an "
        "episode",
        minimum=0,
    )
    eta: float = setting(
        0.9,
        "share of the largest TD error in a sequence's priority; the mean has the rest",
        minimum=0,
        maximum=1,
    )
    rescale: float = setting(
        1e-3,
        "slope, far from 0, of the function that values are rescaled by; 1: they are not",
        above=0,
        maximum=1,
    )


@dataclass(frozen=True)
class R2D2CollectConfig(CollectConfig):
    """Collecting."""

    n_sample: int = setting(
        80,
        "transitions of one environment that are processed together; sequences end there, and "
        "learn.burn_in steps behind it are learnt from in none: set it well above these",
        minimum=2,
        maximum=MOST_ROWS,
    )
    unroll_len: int = setting(
        40, "transitions of a sequence, burn-in included", minimum=2, maximum=MOST_ROWS
    )
    stride: int = setting(20, "transitions from one sequence's start to the next's", minimum=1)


@dataclass(frozen=True)
class R2D2Config(DQNConfig):
    """Settings of R2D2."""

    LEARNS_FROM_SEQUENCES = True
    TAKES_MEMORY = True
    TAKES_BONUS = False

    type: str = "r2d2"
    priority: bool = setting(True, "sample in proportion to priority")
    nstep: int = setting(
        5, "steps of reward before the value is bootstrapped", minimum=1, maximum=1000
    )
    discount_factor: float = setting(0.997, "discount of one step", minimum=0, maximum=1)
    model: R2D2ModelConfig = section(R2D2ModelConfig, "the network")
    learn: R2D2LearnConfig = section(R2D2LearnConfig, "the update")
    collect: R2D2CollectConfig = section(R2D2CollectConfig, "collecting")

    def problems(self) -> Iterator[Problem]:
        """Rules over several settings."""
        yield from DQNConfig.problems(self)
        if self.model.memory == "none":
            yield Problem(
                "model.memory", "R2D2 is DQN with a memory: lstm, gru or gtrxl; or use dqn"
            )
        length, stride = self.collect.unroll_len, self.collect.stride
        yield from _problems_of_sequences(length, stride, self.learn.burn_in)
        if self.random_collect_size:
            yield Problem("random_collect_size", "has no states for a memory; leave this 0")


@dataclass(frozen=True)
class SACLearnConfig(LearnConfig):
    """The update."""

    PAPER_RATIO = 256  # a batch of 256 after every step (Haarnoja et al. 2018)

    batch_size: int = setting(256, "samples of one update (of each learner)", minimum=1)
    learning_rate: float = setting(3e-4, "step size of all three optimizers", above=0)
    tau: float = setting(
        0.005, "share by which target critics follow in an update", above=0, maximum=1
    )
    alpha: float = setting(
        0.2, "temperature, the weight of the entropy; of one that is learnt, at first", above=0
    )
    auto_alpha: bool = setting(True, "learn the temperature")
    target_entropy: float | None = setting(
        None, "entropy that the temperature is learnt for; empty: -1 for each component"
    )


@dataclass(frozen=True)
class SACConfig(ContinuousConfig):
    """Settings of SAC."""

    DRAWS_ACTIONS = True
    TAKES_BONUS = True

    type: str = "sac"
    learn: SACLearnConfig = section(SACLearnConfig, "the update")


@dataclass(frozen=True)
class TQCModelConfig(ContinuousModelConfig):
    """The networks, and how finely critics tell returns apart."""

    num_quantiles: int = setting(25, "quantiles that a critic's distribution has", minimum=2)


@dataclass(frozen=True)
class TQCLearnConfig(SACLearnConfig):
    """The update."""

    critics: int = setting(5, "critics, of whose quantiles the least count together", minimum=1)
    drop_quantiles: int = setting(
        2,
        "largest quantiles that targets leave out, for each critic: the more, the lower are values",
        minimum=0,
    )


@dataclass(frozen=True)
class TQCConfig(SACConfig):
    """Settings of TQC: SAC with quantiles of returns."""

    type: str = "tqc"
    model: TQCModelConfig = section(TQCModelConfig, "the networks")
    learn: TQCLearnConfig = section(TQCLearnConfig, "the update")

    def problems(self) -> Iterator[Problem]:
        """Rules over several settings."""
        yield from SACConfig.problems(self)
        if self.learn.drop_quantiles >= self.model.num_quantiles:
            said = f"leaves nothing of model.num_quantiles ({self.model.num_quantiles})"
            yield Problem("learn.drop_quantiles", said)


@dataclass(frozen=True)
class DiscreteSACLearnConfig(SACLearnConfig):
    """The update."""

    PAPER_RATIO = 16  # a batch of 64 after every 4 steps (Christodoulou 2019)

    batch_size: int = setting(64, "samples of one update (of each learner)", minimum=1)
    target_entropy: float | None = setting(
        None,
        "entropy, in nats, that the temperature is learnt for; empty: 0.98 of that of the uniform "
        "policy, too much where a few actions must be chosen well",
    )


@dataclass(frozen=True)
class DiscreteSACConfig(ReplayPolicyConfig):
    """Settings of SAC for discrete actions."""

    ACTIONS = ("discrete",)
    TAKES_MASKS = True
    DRAWS_ACTIONS = True
    TAKES_BONUS = True

    type: str = "discrete_sac"
    discount_factor: float = setting(0.99, "discount of one step", minimum=0, maximum=1)
    model: DiscreteModelConfig = section(DiscreteModelConfig, "the networks")
    learn: DiscreteSACLearnConfig = section(DiscreteSACLearnConfig, "the update")


@dataclass(frozen=True)
class DiscreteCQLLearnConfig(DQNLearnConfig):
    """The update."""

    cql_weight: float = setting(
        1.0, "weight of the term that lowers values of actions not in the data", minimum=0
    )


@dataclass(frozen=True)
class DiscreteCQLConfig(DQNConfig):
    """Settings of CQL for discrete actions: DQN, with conservative values."""

    type: str = "discrete_cql"
    learn: DiscreteCQLLearnConfig = section(DiscreteCQLLearnConfig, "the update")


@dataclass(frozen=True)
class CQLLearnConfig(SACLearnConfig):
    """The update."""

    cql_weight: float = setting(
        5.0, "weight of the term that lowers values of actions not in the data", minimum=0
    )
    cql_actions: int = setting(
        10, "actions of the policy, and as many uniform ones, that the term draws", minimum=1
    )


@dataclass(frozen=True)
class CQLConfig(SACConfig):
    """Settings of CQL: SAC, with conservative values."""

    type: str = "cql"
    learn: CQLLearnConfig = section(CQLLearnConfig, "the update")


@dataclass(frozen=True)
class IQLLearnConfig(LearnConfig):
    """The update."""

    PAPER_RATIO = 256  # a batch of 256 after every step online (Kostrikov et al. 2021)

    batch_size: int = setting(256, "samples of one update (of each learner)", minimum=1)
    learning_rate: float = setting(3e-4, "step size of all three optimizers", above=0)
    tau: float = setting(
        0.005, "share by which target critics follow in an update", above=0, maximum=1
    )
    expectile: float = setting(
        0.7, "of a state's value among those of its actions; 0.5: their mean", above=0, maximum=1
    )
    beta: float = setting(
        3.0, "inverse temperature: how much more better actions are imitated; 0: bc", minimum=0
    )
    most_weight: float = setting(100.0, "limit to an action's weight", above=0)


@dataclass(frozen=True)
class IQLConfig(ContinuousConfig):
    """Settings of IQL."""

    DRAWS_ACTIONS = True

    type: str = "iql"
    learn: IQLLearnConfig = section(IQLLearnConfig, "the update")


@dataclass(frozen=True)
class TD3LearnConfig(LearnConfig):
    """The update."""

    PAPER_RATIO = 256  # a batch of 256 after every step (Fujimoto et al. 2018, their code)

    batch_size: int = setting(256, "samples of one update (of each learner)", minimum=1)
    tau: float = setting(0.005, "share by which target networks follow", above=0, maximum=1)
    critics: int = setting(2, "critics; the least of their values counts", minimum=1)
    policy_delay: int = setting(2, "updates of the critics for one of the actor", minimum=1)
    target_noise: float = setting(
        0.2, "deviation of the noise of actions that targets value, of half the range", minimum=0
    )
    target_noise_clip: float = setting(0.5, "limit of that noise", minimum=0)


@dataclass(frozen=True)
class TD3CollectConfig(CollectConfig):
    """Collecting."""

    noise: float = setting(
        0.1, "deviation of the noise of actions that explore, of half the range", minimum=0
    )


@dataclass(frozen=True)
class TD3Config(ContinuousConfig):
    """Settings of TD3."""

    TAKES_BONUS = True

    type: str = "td3"
    learn: TD3LearnConfig = section(TD3LearnConfig, "the update")
    collect: TD3CollectConfig = section(TD3CollectConfig, "collecting")


@dataclass(frozen=True)
class BCModelConfig(ActorCriticModelConfig):
    """The network; shapes and bounds left empty are taken from the environment."""

    HEADS = ContinuousModelConfig.HEADS

    encoder_hidden_size_list: tuple[int, ...] = setting(
        (128, 128), "sizes of the hidden layers", minimum=1
    )
    activation: str = setting("relu", "of the hidden layers", choices=ACTIVATIONS)


@dataclass(frozen=True)
class BCConfig(ReplayPolicyConfig):
    """Settings of behaviour cloning."""

    ACTIONS = ("discrete", "continuous", "multi_discrete", "mixed")
    TAKES_MASKS = True
    IMITATES = True
    DRAWS_ACTIONS = True

    type: str = "bc"
    model: BCModelConfig = section(BCModelConfig, "the network")

    def problems(self) -> Iterator[Problem]:
        """Rules over several settings."""
        yield from ReplayPolicyConfig.problems(self)
        if self.priority:
            yield Problem("priority", "is by errors of values, and bc learns none")
        if self.eval.sample and self.model.action_space in ("continuous", "mixed"):
            yield Problem(
                "eval.sample", "draws discrete actions; of a Box, bc learns the mean alone"
            )


@dataclass(frozen=True)
class PPOLearnConfig(LearnConfig):
    """The update; `batch_size` is that of a minibatch."""

    SCHEDULED = ("learning_rate", "entropy_weight", "clip_ratio")

    learning_rate: float = setting(3e-4, "step size of the optimizer", above=0)
    optimizer: dict[str, Any] = setting(
        {"type": "Adam", "eps": 1e-5},
        "as of every algorithm; the epsilon is that of PPO's first implementation",
    )
    epoch_per_collect: int = setting(10, "passes over the data of one policy", minimum=1)
    value_weight: float = setting(0.5, "weight of the value loss", minimum=0)
    entropy_weight: float = setting(0.0, "weight of the entropy bonus", minimum=0)
    clip_ratio: float = setting(0.2, "limit to the change of an action's probability", above=0)
    value_clip: bool = setting(False, "limit the change of values by clip_ratio too")
    adv_norm: bool = setting(True, "advantages of each minibatch to mean 0, deviation 1")
    grad_clip_norm: float = setting(0.5, "clip the gradient's norm to this; 0: do not", minimum=0)
    target_kl: float | None = setting(
        None, "an update ends where the policy has moved farther than this; empty: never", above=0
    )


@dataclass(frozen=True)
class PPOCollectConfig(CollectConfig):
    """Collecting."""

    n_sample: int = setting(
        128, "steps of each environment between updates of the policy", minimum=1, maximum=MOST_ROWS
    )
    gae_lambda: float = setting(
        0.95, "0: advantages by one step of reward, 1: by all steps", minimum=0, maximum=1
    )


@dataclass(frozen=True)
class PPOConfig(ActorCriticConfig):
    """Settings of PPO."""

    DATA = "learns from its present policy's data"
    HORIZON = "collect.gae_lambda"
    TAKES_BONUS = True

    type: str = "ppo"
    learn: PPOLearnConfig = section(PPOLearnConfig, "the update")
    collect: PPOCollectConfig = section(PPOCollectConfig, "collecting")


@dataclass(frozen=True)
class IMPALALearnConfig(LearnConfig):
    """The update; `batch_size` is that of a minibatch, in transitions."""

    SCHEDULED = ("learning_rate", "entropy_weight")

    batch_size: int = setting(500, "transitions of one update (of each learner)", minimum=1)
    learning_rate: float = setting(6e-4, "step size of the optimizer", above=0)
    epoch_per_collect: int = setting(
        1, "passes over the data; above 1 they are replayed", minimum=1
    )
    rho_clip: float = setting(1.0, "limit to the importance weight of a TD error", above=0)
    trace_clip: float = setting(
        1.0, "limit to how far a TD error counts for earlier steps", above=0
    )
    clip_ratio: float | None = setting(
        None, "APPO: limit to the change of an action's probability; empty: IMPALA", above=0
    )
    value_weight: float = setting(0.5, "weight of the value loss", minimum=0)
    entropy_weight: float = setting(0.01, "weight of the entropy bonus", minimum=0)
    grad_clip_norm: float = setting(40.0, "clip the gradient's norm to this; 0: do not", minimum=0)


@dataclass(frozen=True)
class IMPALACollectConfig(CollectConfig):
    """Collecting."""

    n_sample: int = setting(
        40, "steps of each environment in a rollout, by one policy", minimum=1, maximum=MOST_ROWS
    )
    unroll_len: int = setting(
        20,
        "transitions of a sequence, at most: V-trace bootstraps after them",
        minimum=1,
        maximum=MOST_ROWS,
    )


@dataclass(frozen=True)
class IMPALAConfig(ActorCriticConfig):
    """Settings of IMPALA."""

    DATA = "uses its data as they come"
    HORIZON = "collect.unroll_len"
    CORRECTS_STALENESS = True
    LEARNS_FROM_SEQUENCES = True

    type: str = "impala"
    on_policy: bool = setting(True, "data are used once, as they come")
    learn: IMPALALearnConfig = section(IMPALALearnConfig, "the update")
    collect: IMPALACollectConfig = section(IMPALACollectConfig, "collecting")
