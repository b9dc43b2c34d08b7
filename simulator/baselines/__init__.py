"""Other schedulers as pure policies, each from its paper, to compare with ours; `policy_catalogue` lists them."""
