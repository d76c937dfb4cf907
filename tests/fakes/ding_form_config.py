"""A configuration of DI-engine's form: Python that leaves two dicts."""

# ruff: noqa: C408  (as DI-engine writes them)

print("a configuration may print")

main_config = dict(
    exp_name="form/seed0",
    env=dict(
        collector_env_num=2, evaluator_env_num=1, n_evaluator_episode=1, stop_value=1000, length=7,
        manager=dict(shared_memory=False, max_retry=3),
    ),
    policy=dict(
        model=dict(obs_shape=3, action_shape=2),
        learn=dict(batch_size=4, learner=dict(hook=dict(log_show_after_iter=7, odd=1))),
        eval=dict(evaluator=dict(eval_freq=3)),
        other=dict(replay_buffer=dict(replay_buffer_size=128)),
    ),
)  # fmt: skip
create_config = dict(
    env=dict(type="fakes.ding_form:Env"),
    env_manager=dict(type="subprocess"),
    policy=dict(type="fakes.ding_form:Policy"),
    replay_buffer=dict(type="deque"),
)
