"""What tests share: fakes that check what they are given, probes, and builders."""
