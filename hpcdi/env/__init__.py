"""What is stepped: environments behind one contract. The only package that knows gymnasium.

Owns: the manager contract and the timestep (`base`), managers over gymnasium's vector environments
(`gym_manager`), over single environments here or in child processes (`pool_manager`), over battles
(`battle_manager`), building by configuration (`create`), small environments whose right data are
known (`toy`). May import: `config`, `utils`, `types`, `errors`. Why so: three autoreset modes, two
kinds of episode end and four ways of seeding stay in here.
"""
