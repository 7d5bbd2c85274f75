"""Operations of the app, one module per resource.

Each operation validates its arguments, runs its transactions, records audit details and notifies services. Operations
do not decide when tasks run or what an outcome means.
"""
