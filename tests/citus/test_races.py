"""On Citus too, who races, is killed or comes again leaves a log that is whole."""

from __future__ import annotations

from tests.adapters import test_crash as crash, test_seals as seals
from tests.adapters.test_seals import paused as paused
from tests.control import test_retain_crash as retaining
from tests.erasure import test_crash as erasing, test_races as races
from tests.erasure.test_crash import filled_url as filled_url
from tests.erasure.test_races import user_and_eraser_stores as user_and_eraser_stores
from tests.store import (
    test_append as appends,
    test_compaction_races as compacting,
    test_sharing as sharing,
)
from tests.store.conftest import calls as calls
from tests.store.test_sharing import clock as clock, stores as stores
from tests.support.engines import on_any

SAME = (
    crash.test_kill_9_loses_no_acknowledged_event_and_writes_no_partial_batch,
    crash.test_one_of_eight_processes_with_the_same_expected_seq_wins,
    crash.test_unchecked_appends_of_eight_processes_leave_no_gap,
    appends.test_a_batch_is_written_completely_or_not_at_all,
    appends.test_a_forked_process_opens_its_own_connections,
    appends.test_a_key_used_for_other_content_is_a_conflict,
    appends.test_a_retry_returns_the_first_receipt,
    appends.test_asyncio_appends_do_not_block_the_event_loop,
    appends.test_expected_seq_has_one_winner_and_the_error_names_both_numbers,
    appends.test_many_concurrent_retries_of_one_key_write_once,
    appends.test_threads_that_share_a_store_leave_no_gap,
    compacting.test_kill_9_at_any_step_leaves_the_next_context_right,
    compacting.test_a_dead_compactor_keeps_its_lease_until_it_ends,
    compacting.test_compactors_of_four_processes_and_sixteen_threads_take_effect_once,
    erasing.test_a_killed_erasure_is_detected_and_completed,
    erasing.test_marked_sessions_stay_unusable_after_a_kill,
    erasing.test_a_killed_hold_is_completed,
    erasing.test_a_killed_restoration_is_completed,
    races.test_processes_that_write_during_an_erasure_leave_nothing,
    races.test_a_new_session_is_refused_after_the_erasure,
    races.test_an_old_key_cannot_write_after_readmission,
    races.test_a_fork_made_while_the_erasure_of_its_origin_begins_is_erased_too,
    races.test_a_fork_of_an_erased_session_is_refused,
    races.test_two_concurrent_erasures_of_one_user_sign_one_certificate,
    seals.test_appends_continue_while_a_sealer_works,
    seals.test_kill_9_after_any_statement_leaves_each_head_sealed_once,
    seals.test_kill_9_at_any_step_leaves_an_intact_tree_that_can_grow,
    seals.test_many_streams_are_sealed_some_at_a_time,
    seals.test_each_head_is_sealed_by_one_of_several_sealers,
    seals.test_only_streams_that_moved_have_a_new_leaf,
    seals.test_verify_raises_no_alarm_while_others_append_and_seal,
    sharing.test_a_pending_compaction_is_made_once,
    sharing.test_sessions_are_rebuilt_once,
    sharing.test_each_session_is_verified_once_per_interval,
    sharing.test_one_worker_does_the_duties_of_the_whole_store,
    sharing.test_a_killed_workers_session_is_taken_up_when_its_lease_ends,
    retaining.test_a_killed_retention_is_completed,
)
globals().update({test.__name__: on_any(test) for test in SAME})
