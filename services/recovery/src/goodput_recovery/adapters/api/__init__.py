"""The REST API: plans and what became of them, executed actions, the policy, and what a person may do."""
