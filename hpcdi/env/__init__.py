"""What is stepped: environments behind one contract. The only package that knows gymnasium.

Owns: the timestep and the settings (`base`), the managers' contract (`manager`), managers over
gymnasium's vector environments (`gym_manager`) and over pools of single ones here or in child
processes (`pooled`: `pool_manager` for arrays, `battle_manager` for players), building by
configuration (`create`), small environments whose right data are known (`toy`). May import:
`config`, `utils`, `types`, `errors`. Why so: three autoreset modes, two kinds of episode end and
four ways of seeding stay in here.
"""
