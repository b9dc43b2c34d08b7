"""Pure decisions of the executor: its state, local events and actions, and the policy that derives actions."""
