"""The pack ``contracts``: rules for the numbers of contracts."""

CONTRACTS = r"""
[[rules]]
id = "helpdesk.contract"
type = "CONTRACT"
pattern = '\bCTR-\d{6}\b'
examples = ["the invoice of «CTR-204817»"]
counter_examples = ["CTR-20", "the CTR-form"]
"""
